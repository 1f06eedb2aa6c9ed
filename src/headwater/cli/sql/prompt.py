"""The prompt of `headwater sql`: queries over several lines, a history, and completion of paths."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from headwater import limits
from headwater.cli.failing import failures
from headwater.cli.output import print_list, say, shown
from headwater.cli.sql.output import WRITERS, ResultSink
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.sql import SqlSession

HELP = """\
A query ends with a semicolon: SELECT type, count(*) FROM 'shop/orders' GROUP BY ALL;
FROM 'shop/orders' reads a stream, 'shop/*' several, 'prices' a table, './x.parquet' a file,
state('shop/orders', 'order') the current entities of a type. Hidden columns: _stream, _offset, _time, _value.
.tables [PREFIX]   streams and tables        .columns NAME   the columns of one of them
.format NAME       table, csv or json        .help, .quit    Tab completes paths, Ctrl-C clears the line."""
_PROMPT, _MORE = "headwater> ", "        -> "
_WORDS = (
    *(
        "SELECT",
        "FROM",
        "WHERE",
        "GROUP BY ALL",
        "ORDER BY",
        "LIMIT",
        "JOIN",
        "LEFT JOIN",
        "USING",
        "HAVING",
        "count(*)",
    ),
    *("stream('", "state('", "table('", "delta('", "_offset", "_stream", "_time", "_value", "DESCRIBE", "SUMMARIZE"),
    *(".help", ".tables", ".columns ", ".format ", ".quit"),
)


def prompt(session: SqlSession, client: Client, sink: ResultSink) -> None:
    """Read queries and commands from a terminal, and print their results, until the end of input."""
    with _line_editing(Completer(client).complete):
        say("SQL over streams and tables. .help shows how, Ctrl-D ends it.")
        lines: list[str] = []
        while True:
            try:
                line = input(_MORE if lines else _PROMPT)
                if not lines and line.strip().startswith("."):
                    if line.strip() in (".quit", ".exit"):
                        return
                    with _reported():
                        sink = _command(line.split(), session, client, sink)
                    continue
                lines += [line] if line.strip() else []
                if line.rstrip().endswith(";"):
                    text, lines = "\n".join(lines), []
                    with _reported():
                        sink.write(session.query(text))
                    session.close()
            except EOFError:
                say("")
                return
            except KeyboardInterrupt:
                say("")
                lines = []


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Print an error as a line, and go on."""
    with contextlib.suppress(typer.Exit), failures():
        yield


def _command(words: list[str], session: SqlSession, client: Client, sink: ResultSink) -> ResultSink:
    """Run a command of the prompt, and return the sink for the next results."""
    match words:
        case [".help"]:
            for line in HELP.splitlines():
                say(line)
        case [".tables"] | [".tables", _]:
            _list(client, words[1].strip("'\"") if len(words) > 1 else "")
        case [".columns", name]:
            sink.write(session.query(f"SELECT column_name, column_type FROM (DESCRIBE FROM {_named(name)})"))  # noqa: S608
        case [".format", name] if name in ("table", "csv", "json"):
            return msgspec.structs.replace(sink, format=name)
        case [".format", *_]:
            say(f"headwater: the formats of the prompt are {', '.join(list(WRITERS)[:3])}", err=True)
        case _:
            say(f"headwater: there is no command {words[0]}; see .help", err=True)
    return sink


def _named(text: str) -> str:
    """A name, with or without quotes, or a call such as `state('shop/orders','order')`, as SQL has it."""
    if text.endswith(")"):
        return text
    return "'" + text.strip("'\"").replace("'", "''") + "'"


def _list(client: Client, prefix: str) -> None:
    most = limits.SQL_SUGGESTED_PATHS
    rows = [{"name": info.path, "kind": info.content_type} for info in itertools.islice(client.list(prefix), most)]
    with contextlib.suppress(HeadwaterError):
        rows += [
            {"name": info.name, "kind": f"table of {info.schema}"}
            for info in itertools.islice(client.tables(prefix), most)
        ]
    print_list(rows, ["name", "kind"])
    if len(rows) >= most:
        say(f"headwater: only the first {most:,} are shown; give a prefix: .tables shop/", err=True)


class Completer:
    """Completes paths of streams and names of tables inside quotes, and words of SQL elsewhere."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: tuple[str, list[str]] = ("", [])

    def complete(self, text: str, number: int) -> str | None:
        """The completion with a number, as readline asks for it."""
        if number == 0:
            self._known = (text, self.completions(text))
        completions = self._known[1]
        return completions[number] if number < len(completions) else None

    def completions(self, text: str) -> list[str]:
        before, quote, begun = text.rpartition("'")
        if not quote:
            words = [word for word in _WORDS if word.lower().startswith(text.lower())]
            return words if text else []
        try:
            most = limits.CLI_COMPLETE_PATHS_MAX
            paths = [info.path for info in itertools.islice(self._client.list(begun), most)]
            with contextlib.suppress(HeadwaterError):
                paths += [info.name for info in itertools.islice(self._client.tables(begun), most)]
        except HeadwaterError:
            return []
        return [f"{before}{quote}{_quotable(path)}'" for path in paths if path == shown(path)]


def _quotable(path: str) -> str:
    return path.replace("'", "''")


@contextlib.contextmanager
def _line_editing(complete: Callable[[str, int], str | None]) -> Iterator[None]:
    """Editing, completion and a history, if Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,;()=<>")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    history = _history()
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_completer(None)
        readline.set_history_length(limits.SQL_HISTORY_LINES)
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            history.touch(mode=0o600)
            readline.write_history_file(history)


def _history() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.path.expanduser(state)) / "headwater" / "sql_history"
