"""A client, a prefix of its own, and the rows of queries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from headwater.client import Client
from headwater.sql import SqlSession
from tests.servers import Server

Ask: TypeAlias = Callable[[str], list[Any]]
_numbers = itertools.count()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"sql{next(_numbers)}"


@pytest.fixture
def ask(client: Client) -> Iterator[Ask]:
    """The rows of a query: tuples, or values if there is one column."""
    with SqlSession(client) as session:

        def rows(query: str) -> list[Any]:
            table = session.query(query).arrow()
            columns = [column.to_pylist() for column in table.columns]
            return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

        yield rows
