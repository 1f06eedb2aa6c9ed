"""One Spark session for all tests, because a session takes seconds to start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.servers import Server
from pyspark.sql import DataFrame, SparkSession

import headwater.spark
from headwater.client import Client
from tests.edges import memory_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with memory_server() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = headwater.spark.session("headwater-tests", master="local[2]")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


_numbers = itertools.count()


@pytest.fixture
def path() -> str:
    """A stream's path that no other test uses."""
    return f"spark/{next(_numbers)}"


@pytest.fixture
def read(spark: SparkSession, server: Server) -> Callable[..., DataFrame]:
    def read(kind: str = "durable-streams", schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format(kind).option("url", server.url).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


@pytest.fixture
def write(server: Server) -> Callable[..., None]:
    def write(rows: DataFrame, kind: str = "durable-streams", **options: Any) -> None:
        options = {"url": server.url, "maxRequestBytes": 1 << 20, **options}
        rows.write.format(kind).options(**options).mode("append").save()

    return write


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
