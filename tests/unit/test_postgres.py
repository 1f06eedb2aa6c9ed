"""The PostgreSQL that the tests start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.postgres import own_postgres, postgres, versions


def test_each_test_has_a_database_of_its_own() -> None:
    first, second = postgres().new_database(), postgres().new_database()
    with psycopg.connect(first, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)


@pytest.mark.slow
@pytest.mark.parametrize("version", list(versions()))
def test_a_killed_server_starts_again_with_what_was_committed(version: int) -> None:
    with own_postgres(version) as server:
        url = server.new_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
            assert connection.info.server_version // 10_000 == version
        server.kill()
        assert not server.is_running
        server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT number FROM kept").fetchone() == (1,)


@pytest.mark.slow
def test_a_server_outlives_the_thread_that_has_asked_for_it() -> None:
    with ThreadPoolExecutor(1) as threads:
        server = threads.submit(postgres.__wrapped__).result()
    try:
        assert server.new_database()
    finally:
        server.remove()
