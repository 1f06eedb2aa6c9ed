"""The pages of `docs/reference`, made from the code: `python -m tools.reference`, or with `--check` only compared."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from headwater import errors
from headwater.cli import make_app
from headwater.limits import Limits, bounds_of
from headwater.options import Option, options_of
from headwater.server.auth.route_rules import Subject
from headwater.server.auth.signing import PARAMETER
from headwater.server.observing.metrics import METRICS
from headwater.server.routes import ROUTES, Route
from headwater.server.settings import OPTIONS, variable
from headwater.spark.connection import ConnectionOptions
from headwater.spark.options import (
    ReadOptions,
    SourceOptions,
    StateReadOptions,
    StateWriteOptions,
    StreamReadOptions,
    StreamWriteOptions,
    WriteOptions,
)
from headwater.spark.parsing import FormatOptions
from headwater.spark.tables.options import TableReadOptions, TableWriteOptions
from tools import reference_texts as texts

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "reference"
MADE = "<!-- made by python -m tools.reference; change the code or tools/reference_texts.py -->"
_CONNECTION = ("--url", "--token", "--auth", "--header", "--json")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


# Routes, parameters and headers


def routes() -> str:
    rows = [(f"`{route.method}`", f"`{route.template}`", _scope(route), texts.ROUTES[_name(route)]) for route in ROUTES]
    return f"""# Routes

Streams are below `/v1/stream/`, tables below `/v1/table/`. In a path, `{{path}}` is one or more segments. Every route
supports `OPTIONS`. A server that is [mounted](../embedding.md) in an application has the routes below its mount point.

The scope is what a token needs where [access is checked](../security.md#scopes).

{table(("method", "path", "scope", "what"), rows)}"""


def _name(route: Route) -> str:
    return f"{route.method} {route.template}"


def _scope(route: Route) -> str:
    rule = route.action
    if rule.action is None:
        return "none"
    about = {
        Subject.PATH: f"`{rule.action}:{{path}}`",
        Subject.NAMED: f"`{rule.action}` of what the query names",
        Subject.LIST: f"`{rule.action}`; the response lists only what may be read",
        Subject.MANY: f"`{rule.action}` of each stream",
        Subject.SERVER: f"`{rule.action}:**`",
        Subject.METRICS: f"`{rule.action}:**`, unless `open_metrics`",
    }
    return about[rule.subject]


def parameters() -> str:
    parts = []
    for route, known in texts.PARAMETERS.items():
        rows = [(f"`{name}`", what) for name, what in known.items()]
        parts.append(f"## {route.replace('{path}', 'PATH')}\n\n{table(('parameter', 'what'), rows)}")
    return f"""# Query parameters

Unknown parameters are ignored. An invalid value, and a parameter of a read that is given twice, get 400 (`invalid-query`).
Routes that are not listed have no parameters.

`{PARAMETER}` can be added to every read of a stream or table. {texts.SIGNED}

{chr(10).join(parts)}"""


def headers() -> str:
    return f"""# Headers

Header names are not case sensitive. [The protocol](../protocol.md) and [STP tables](../stp.md) explain when each is sent.

## Headers of the protocols

{_header_table(texts.HEADERS)}
## Headers of HTTP

{_header_table(texts.HTTP_HEADERS)}"""


def _header_table(known: Mapping[str, tuple[str, str, str]]) -> str:
    directions = {texts.BOTH: "request, response", texts.REQUEST: "request", texts.RESPONSE: "response"}
    return table(
        ("header", "sent with", "what"), [(f"`{name}`", directions[way], what) for name, way, what in known.values()]
    )


# Errors


def error_tree(kind: type[errors.HeadwaterError] = errors.HeadwaterError) -> Iterator[type[errors.HeadwaterError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from error_tree(below)


def error_page() -> str:
    bases = errors.HeadwaterError.__subclasses__()
    parts = [f"## {base.__name__}\n\n{_error_table(base)}" for base in bases if base.__module__ == errors.__name__]
    return f"""# Errors

The server returns a [problem document](../protocol.md#errors) whose `type` is `urn:headwater:` and the code. The client
raises the class of that code from `headwater.errors`. Errors without a status are found by the client, a job or the server
itself.

`HeadwaterError` is the base of all classes. Those of a section are caught by its first class. Where *retryable* is yes, the same
request can succeed later. [The client](../client.md#errors) says which errors most programs need.

{chr(10).join(parts)}"""


def _error_table(base: type[errors.HeadwaterError]) -> str:
    rows = []
    for kind in error_tree(base):
        status, code = (str(kind.status), f"`{kind().code}`") if kind.status else ("", "")
        (above,) = kind.__bases__
        of = "" if kind is base or above is base else f" Base: `{above.__name__}`."
        rows.append(
            (f"`{kind.__name__}`", status, code, "yes" if kind.retryable else "no", f"{kind.title}. {kind.advice}{of}")
        )
    return table(("class", "status", "code", "retryable", "what, and what to do"), rows)


# Options, limits and metrics


def options() -> str:
    return f"""# Options and limits

## Options

The options of `headwater serve`. [Running Headwater](../operations.md#options) says how flags, environment and file combine.

{table(("flag", "environment", "default", "what"), [_option(option) for option in OPTIONS.values()])}
## Limits

Set with `--limit NAME=VALUE`, with `HEADWATER_LIMIT_NAME=VALUE` in the environment, or below `[limits]` in the file. The
number in brackets is the status of a request that exceeds the limit.

{table(("name", "default", "least", "most", "what"), [_limit(field) for field in msgspec.structs.fields(Limits)])}"""


def _option(option: Option) -> tuple[str, ...]:
    what = f"{option.help} Repeatable." if option.many else option.help
    if option.name == "limits":
        return "`--limit NAME=VALUE`", "`HEADWATER_LIMIT_NAME`", "see [limits](#limits)", what
    flag = f"`{option.flag} {option.metavar or option.name.upper()}`"
    if option.kind is bool:
        flag = f"`{option.flag}`, `--no-{option.flag[2:]}`"
    default = "" if option.default in (None, (), False) else f"`{option.default}`"
    return flag, f"`{variable(option.name)}`", default, what


def _limit(field: Any) -> tuple[str, ...]:
    (about,) = field.type.__metadata__
    bounds = bounds_of(field.name)
    numbers = [_number(field.name, number) for number in (field.default, bounds.least, bounds.most)]
    return f"`{field.name}`", *numbers, about.description


def _number(name: str, value: float) -> str:
    if "bytes" in name:
        for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


SPARK_OPTIONS: dict[str, tuple[type[FormatOptions], type[FormatOptions]]] = {  # of the first struct, not the second
    "Options of all formats": (ConnectionOptions, FormatOptions),
    "Reading": (SourceOptions, ConnectionOptions),
    "Reading streams": (ReadOptions, SourceOptions),
    "Reading durable-streams": (StreamReadOptions, ReadOptions),
    "Reading stream-state": (StateReadOptions, ReadOptions),
    "Reading stp": (TableReadOptions, SourceOptions),
    "Writing": (WriteOptions, ConnectionOptions),
    "Writing streams": (StreamWriteOptions, WriteOptions),
    "Writing stream-state": (StateWriteOptions, StreamWriteOptions),
    "Writing stp": (TableWriteOptions, WriteOptions),
}


def spark() -> str:
    parts = [f"## {title}\n\n{_format_table(*kinds)}" for title, kinds in SPARK_OPTIONS.items()]
    return f"""# Options of the Spark formats

[Spark](../spark.md) describes the formats `durable-streams`, `stream-state` and `stp`. Names are case-insensitive. A format
refuses options that it does not have, and options that have no effect in a batch or in a streaming query. *Streams* are
`durable-streams` and `stream-state`. Where *for* is empty, an option is for batch reads and streaming queries.

{chr(10).join(parts)}"""


def _format_table(kind: type[FormatOptions], base: type[FormatOptions]) -> str:
    known = {(option.name, option.help) for option in options_of(base)}
    options = [option for option in options_of(kind) if (option.name, option.help) not in known]
    rows = [(f"`{option.name}`", _format_default(option), option.only, option.help) for option in options]
    return table(("option", "default", "for", "what"), rows)


def _format_default(option: Option) -> str:
    if option.is_required:
        return "required"
    if isinstance(option.default, bool | enum.Enum | str):
        shown = str(getattr(option.default, "value", option.default))
        return f"`{shown.lower() if option.kind is bool else shown}`" if shown else ""
    return _number(option.name.lower(), option.default) if isinstance(option.default, int | float) else ""


def metrics() -> str:
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in METRICS
    ]
    return f"""# Metrics

`GET /metrics` returns these. [Monitoring](../observing.md#metrics) explains labels, kinds of readers and
sampling, and has the alerts. A server in memory has no metrics of the journal, the fold and the disk.

{table(("metric", "kind", "labels", "what"), rows)}"""


# Commands


def commands() -> str:
    parts = [_command(name, command) for name, command in each_command()]
    return f"""# Commands

[Command line](../cli.md) has examples. `-h` and `--help` work with every command.
Commands that are marked with *server* talk to a server and have these options too:

{table(("option", "default", "what"), _shared_options())}
{chr(10).join(parts)}"""


def each_command() -> Iterator[tuple[str, Any]]:
    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for word, inner in getattr(command, "commands", {}).items():
            yield from below(f"{name} {word}", inner)

    return below("headwater", typer.main.get_command(make_app()))


def _command(name: str, command: Any) -> str:
    server = _talks_to_a_server(command)
    parameters = [parameter for parameter in command.params if not (server and parameter.opts[0] in _CONNECTION)]
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(argument) for argument in arguments)])
    about = " ".join((command.help or "").split())
    rows = [_parameter(parameter) for parameter in parameters]
    listed = "\n" + table(("argument or option", "default", "what"), rows) if rows else ""
    return f"## {name}\n\n`{usage}`{' *server*' if server else ''}\n\n{about}\n{listed}"


def _talks_to_a_server(command: Any) -> bool:
    return {"--url", "--token", "--auth", "--header"} <= {parameter.opts[0] for parameter in command.params}


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _parameter(parameter: Any) -> tuple[str, ...]:
    if parameter.param_type_name == "argument":
        return (
            f"`{parameter.metavar or parameter.name.upper()}`",
            "" if parameter.required else "may be left out",
            parameter.help or "",
        )
    flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    if not parameter.is_flag:
        flags += f" `{parameter.metavar or parameter.name.upper()}`"
    shown = parameter.default
    if shown in (None, "", False, [], ()) or callable(shown) or not parameter.show_default:
        shown = "required" if parameter.required else ""
    else:
        shown = f"`{getattr(shown, 'value', shown)}`"
    help_ = " ".join((parameter.help or "").split())
    if parameter.envvar:
        help_ += f" Or `{parameter.envvar}`."
    return flags, shown, help_


def _shared_options() -> list[tuple[str, ...]]:
    command = next(command for name, command in each_command() if name == "headwater list")
    return [_parameter(parameter) for parameter in command.params if parameter.opts[0] in _CONNECTION]


PAGES: dict[str, Callable[[], str]] = {
    "routes.md": routes,
    "parameters.md": parameters,
    "headers.md": headers,
    "errors.md": error_page,
    "options.md": options,
    "spark.md": spark,
    "commands.md": commands,
    "metrics.md": metrics,
}


def written() -> dict[Path, str]:
    return {DIRECTORY / name: f"{MADE}\n\n{page().rstrip()}\n" for name, page in PAGES.items()}


def main() -> int:
    changed = [path for path, text in written().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in changed:
            sys.stderr.write(f"{path.name} is not what the code says: run python -m tools.reference\n")
        return 1 if changed else 0
    for path in changed:
        path.write_text(written()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
