"""SQL over streams, states and tables, with DuckDB: `SqlSession(client).query("SELECT …")`. Needs the extra `sql`."""

from __future__ import annotations

from headwater.client.arrow import require_pyarrow
from headwater.errors import MissingExtraError

require_pyarrow()
try:
    import duckdb as _duckdb
except ImportError:
    raise MissingExtraError("SQL needs the package duckdb, which is not installed") from None
del _duckdb

from headwater.sql.session import SqlAnswer, SqlSession  # noqa: E402  # only if its packages are there

__all__ = ["SqlAnswer", "SqlSession"]
