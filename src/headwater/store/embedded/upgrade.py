"""The upgrade of a data directory from format 1 to format 2, in place, when it is first opened.

The index is migrated in one transaction, then the FORMAT file is written. If an upgrade is interrupted between the two,
the next one completes it. Journal segments of format 1 can be read and folded as they are.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import msgspec

from headwater.log.state import StreamState
from headwater.store.embedded import format1, index, layout

log = logging.getLogger("headwater.store")


def upgrade(directory: Path) -> None:
    log.warning("upgrading %s from format 1 to format %d", directory, layout.FORMAT)
    connection = index.connect(directory / layout.INDEX_NAME, write=True)
    try:
        if index.format_of(connection) == 1:
            migrate_index(connection)
        index.check_format(connection)
    finally:
        connection.close()
    layout.write_format(directory)


def migrate_index(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ALTER TABLE chunks ADD COLUMN at_ms INTEGER")
    connection.execute("ALTER TABLE chunks ADD COLUMN times BLOB")
    connection.execute("ALTER TABLE producers ADD COLUMN at_ms INTEGER NOT NULL DEFAULT 0")
    for statement in index.TABLES_OF_FORMAT_2.split(";"):
        connection.execute(statement)
    last_id = -1
    while rows := connection.execute(
        "SELECT id, state FROM streams WHERE id > ? ORDER BY id LIMIT 1000", (last_id,)
    ).fetchall():
        _migrate_states(connection, [format1.decode_state(row) for _, row in rows])
        last_id = rows[-1][0]
    connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (index.FORMAT,))
    connection.execute("COMMIT")


def _migrate_states(connection: sqlite3.Connection, states: list[StreamState]) -> None:
    times = [(state.accessed_ms, state.id) for state in states]
    connection.executemany("INSERT INTO untimed (at_ms, stream_id) VALUES (?, ?)", times)
    connection.executemany("UPDATE producers SET at_ms = ? WHERE stream_id = ?", times)
    connection.executemany(
        "UPDATE streams SET state = ? WHERE id = ?", [(msgspec.msgpack.encode(state), state.id) for state in states]
    )
