"""The process that computes snapshots, started by `SubprocessContent`. Each computes one.

The first line of its input says of what (`Begin`). Then each task is a line with a number: that many bytes follow,
which are the next piece; 0 ends the stream; and after that, a number asks for the next record of the snapshot, of about
that size. An answer is a line with an `SnapshotAnswer`, and the bytes of a record.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import msgspec

from headwater.limits import FOLD_NICE
from headwater.server.compacting.contents import ContentSize, SnapshotContent, StateContent, TableContent, open_database
from headwater.worker_process import become_worker, run_in_idle_time


class Begin(msgspec.Struct, frozen=True):
    """What the snapshot is of."""

    is_table: bool
    memory_bytes: int  # for the content; more of it is in a temporary file
    offset: str = ""  # of a state stream: where reading continues
    deleted_before_ms: int = 0  # of a table
    complete_since: int = 0


class SnapshotAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a task. `size` bytes follow; after the last record, 0."""

    error: str | None = None
    size: int = 0
    content: ContentSize | None = None  # when the stream has ended


def open_content(begin: Begin) -> SnapshotContent:
    database = open_database(begin.memory_bytes)
    if begin.is_table:
        return TableContent(database, begin.deleted_before_ms, begin.complete_since)
    return StateContent(database, begin.offset)


def work(tasks: BinaryIO, output: int) -> None:
    content = open_content(msgspec.json.decode(tasks.readline(), type=Begin))
    for line in tasks:
        size = int(line)
        if not size:
            break
        content.add(tasks.read(size))
        _answer(output, SnapshotAnswer())
    _answer(output, SnapshotAnswer(content=content.finish()))
    wanted = tasks.readline()
    for record in content.records(int(wanted or b"0")):
        if not wanted:
            return
        _answer(output, SnapshotAnswer(size=len(record)), record)
        wanted = tasks.readline()
    _answer(output, SnapshotAnswer())


def _answer(output: int, answer: SnapshotAnswer, data: bytes = b"") -> None:
    left = memoryview(msgspec.json.encode(answer) + b"\n" + data)
    while left:
        left = left[os.write(output, left) :]


def main() -> None:
    become_worker(FOLD_NICE)
    run_in_idle_time()
    output = sys.stdout.fileno()
    try:
        work(sys.stdin.buffer, output)
    except BrokenPipeError:  # the server was killed
        return
    except Exception as error:  # noqa: BLE001 - reported to the server
        _answer(output, SnapshotAnswer(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
