"""An index file that does not change while another process writes to the index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headwater.store.embedded.backup.snapshot import frozen
from tests.unit.store.embedded.backup.test_backing_up import writing
from tests.unit.store.embedded.test_directory import live
from tests.waiting import PROGRAM_LIMIT_S

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("CREATE TABLE IF NOT EXISTS more (data)")
connection.execute("INSERT INTO more VALUES (zeroblob(100000))")
print(connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone())
"""


def write(path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITER, str(path)], check=True, timeout=PROGRAM_LIMIT_S)


def test_a_frozen_file_does_not_change(tmp_path: Path) -> None:
    """The writer is another process, because locks are per process."""
    live(tmp_path / "data", writing("one;"))
    path = tmp_path / "data" / "index.db"
    with open(path, "rb") as file:  # closing it would release the locks
        with frozen(path) as state:
            before = file.read()
            assert len(before) == state.size_bytes
            write(path)
            file.seek(0)
            assert file.read() == before
        write(path)
        file.seek(0)
        assert file.read() != before
