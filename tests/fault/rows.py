"""Damage in any row of the index: every answer is right, or an error that names the damage."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from headwater.errors import DamagedDataError
from headwater.store.embedded.checking import Checker
from headwater.store.embedded.fold_worker import FoldWorker
from headwater.store.embedded.journal import CorruptJournalError, segment_numbers
from headwater.store.embedded.store import EmbeddedStore
from tests.fault.copies import Directory, contents_of, open_copy, run_now
from tests.fault.oracle import BrokenPromiseError
from tests.fault.world import KEYS, PATHS

T = TypeVar("T")
Answers: TypeAlias = dict[tuple[str, object], object]

TABLES = ("meta", "streams", "producers", "expired_producers", "chunks", "documents", "garbage")
DAMAGED = "damaged"
FAR = 1 << 60


def check_damaged_row(directory: Directory, rng: random.Random, tables: Sequence[str] = TABLES) -> str:
    """Damage a row of a table in a copy of a directory and ask everything, before and after a fold. Returns what was
    damaged."""
    intact, damaged = directory.copy(random.Random(0)), directory.copy(random.Random(0))
    paths = {"absent", *PATHS, *[path for path, _, _ in contents_of(intact).streams.values()]}
    whole = answers(intact, paths)
    _fold(intact, "")
    folded = answers(intact, paths)
    what = flip(damaged.index.connect(), rng, tables)
    if not what:
        return ""
    damaged.index.commit()
    try:
        problems = Checker(damaged.disk, damaged.index.connect(), lambda _: None).run().problems
        if not problems and not what.startswith("chunks.id"):  # which nothing refers to
            raise BrokenPromiseError(f"{what}: check finds nothing")
        _compare(what, whole, answers(damaged, paths))
        _fold(damaged, what)
        _compare(f"{what}, folded", folded, answers(damaged, paths))
    except (DamagedDataError, CorruptJournalError) as error:
        if not what.startswith(("meta", "streams.id")):  # then the directory does not open
            raise BrokenPromiseError(f"{what}: {error}") from error
    return what


def flip(connection: sqlite3.Connection, rng: random.Random, tables: Sequence[str]) -> str:
    """Flip a bit of a value. Returns the table and column; empty if there is no row."""
    counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    if not any(counts.values()):
        return ""
    table = rng.choice([table for table in tables if counts[table]])
    columns = [row[1:6:4] for row in connection.execute(f"PRAGMA table_info({table})")]
    row = connection.execute(
        f"SELECT * FROM {table} LIMIT 1 OFFSET ?",
        (rng.randrange(counts[table]),),
    ).fetchone()
    position = rng.randrange(len(columns))
    column = columns[position][0]
    keys = [(name, row[number]) for number, (name, is_key) in enumerate(columns) if is_key]
    where = " AND ".join(f"{name} = ?" for name, _ in keys)
    value, expression = _flipped(row[position], rng)
    try:
        connection.execute(
            f"UPDATE {table} SET {column} = {expression} WHERE {where}",
            (value, *[key for _, key in keys]),
        )
    except sqlite3.IntegrityError:  # another row has the key
        return ""
    return f"{table}.{column} of {row[:2]!r}"


def _flipped(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A value with a flipped bit, and the expression to store it."""
    if value is None:
        return 1 << rng.randrange(40), "?"
    if isinstance(value, int):
        changed = (value & (2**64 - 1)) ^ (1 << rng.randrange(64))
        return changed - 2**64 if changed >= 2**63 else changed, "?"
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        data = bytearray(b"\1")
    return bytes(data), "CAST(? AS TEXT)" if isinstance(value, str) else "?"


def _compare(what: str, whole: Answers, answers: Answers) -> None:
    for question, answer in whole.items():
        if answers[question] not in (answer, DAMAGED):
            raise BrokenPromiseError(f"{what}: {question} is {answers[question]!r}, not {answer!r}")


def _fold(directory: Directory, what: str) -> None:
    """Fold and reclaim. Damage in one row stops neither."""
    worker = FoldWorker(directory.disk, directory.index.connect())
    folded = worker._reader.meta().folded.number
    folds = [f"fold {number}" for number in segment_numbers(directory.disk) if number > folded]
    for task in [*folds, "reclaim", "reclaim"]:
        error = worker.handle(task).error or ""
        if "a batch is damaged or missing" in error:
            continue  # the newest segment is not sealed
        if error and not what.startswith(("meta", "streams.id")):
            raise BrokenPromiseError(f"{what}: the fold stopped: {error}")
    directory.index.commit()


# Questions


def answers(directory: Directory, paths: set[str]) -> Answers:
    store = open_copy(directory)
    by_question: Answers = {("page", ""): _ask(lambda: _pages(store))}
    for path in paths:
        by_question["load", path] = _ask(lambda path=path: _load(store, path))  # type: ignore[misc]
        by_question["bytes", path] = _ask(lambda path=path: _bytes(store, path))  # type: ignore[misc]
    for key in ("absent", *KEYS):
        by_question["document", key] = _ask(lambda key=key: store.document(key))  # type: ignore[misc]
    by_question["documents", ""] = _ask(lambda: store.documents("", "", 1000))
    return by_question


def _ask(question: Callable[[], Coroutine[Any, Any, T]]) -> T | str:
    try:
        return run_now(question())
    except DamagedDataError as error:
        if not error.detail:
            raise BrokenPromiseError("an error does not name the damage") from error
        return DAMAGED


async def _pages(store: EmbeddedStore) -> list[dict[str, object]]:
    """All streams, as a list returns them: page after page."""
    pages: list[dict[str, object]] = []
    after: str | None = ""
    while after is not None:
        states, after = await store.page("", after, 1000)
        pages += [_shown(state) for state in states]
    return pages


async def _load(store: EmbeddedStore, path: str) -> dict[str, object] | None:
    state = await store.load(path)
    return None if state is None else _shown(state)


def _shown(state: Any) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


async def _bytes(store: EmbeddedStore, path: str) -> object:
    """All own bytes of a stream, its records, and where a time begins."""
    state = await store.load(path)
    if state is None or state.start == state.tail:
        return None
    whole = b""
    while state.start + len(whole) < state.tail:
        whole += (await store.read(state.id, state.start + len(whole), state.tail, 500)).data
    records = await store.records(state.id, state.start, state.tail, 10_000)
    middle = await store.boundary(state.id, (state.start + state.tail) // 2)
    return (
        whole,
        records,
        middle,
        await store.position_at(state.id, state.start, FAR),
        await store.position_at(state.id, state.start, 0),
    )
