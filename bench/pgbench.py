"""pgbench as the peer of the store in PostgreSQL: it inserts what batches hold, and does nothing else."""

from __future__ import annotations

import os
import re
import subprocess

import psycopg
from tests.postgres import PostgresServer

_STATE = "s" * 120  # about as large as that of a stream


class Pgbench:
    """Inserts the bytes of a batch in one statement, as fast as some connections can."""

    def __init__(
        self,
        server: PostgresServer,
        streams: int,
        batch_bytes: int,
        row_count: int | None = None,
        *,
        states: bool = False,
    ) -> None:
        """`row_count`: of a batch, spread over the streams; without it one for each stream. `states`: each stream has a
        row of its own too, which the statement updates, as whoever compares versions has to."""
        self._server = server
        self._url = server.new_database()
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("CREATE TABLE rows (stream_id bigint, start bigserial, data bytea)")
            connection.execute("ALTER TABLE rows ALTER COLUMN data SET STORAGE EXTERNAL")
            connection.execute("ALTER TABLE rows ADD PRIMARY KEY (stream_id, start)")
            connection.execute(
                "CREATE TABLE states (id bigint PRIMARY KEY, version bigint, state bytea) WITH (fillfactor = 70)"
            )
            connection.execute(
                "INSERT INTO states SELECT id, 1, %s FROM generate_series(0, %s) AS id", (_STATE.encode(), streams - 1)
            )
        count = row_count or streams
        data = "x" * (batch_bytes // count)
        rows = ", ".join(f"({number % streams}, '{data}')" for number in range(count))
        update = f"UPDATE states SET version = version + 1, state = '{_STATE}' WHERE id < {streams}"
        changing = f"WITH changed AS ({update}) " if states else ""
        self._script = server.data.parent / f"batch-{streams}-{batch_bytes}-{count}-{states}.sql"
        self._script.write_text(f"{changing}INSERT INTO rows (stream_id, data) VALUES {rows};\n")
        self._script.chmod(0o644)

    def per_s(self, seconds: float, connections: int = 1) -> float:
        """Transactions per second."""
        program = self._server.program("pgbench")
        command = [
            *(str(program), "--no-vacuum", "--client", str(connections), "--protocol", "prepared"),
            *("--time", str(max(1, round(seconds))), "--file", str(self._script), self._url),
        ]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
        match = re.search(r"tps = ([\d.]+)", answer.stdout)
        if match is None:
            raise RuntimeError(f"pgbench does not say how fast it was: {answer.stdout}")
        return float(match[1])


def settings_of(server: PostgresServer) -> str:
    """The version, and whether commits are durable."""
    with psycopg.connect(server.url("postgres")) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    if row is None:
        raise RuntimeError("PostgreSQL does not say its settings")
    return f"PostgreSQL {row[0].split()[0]}, fsync {row[1]}, synchronous_commit {row[2]}"
