"""Opening the store: the schema, privileges, settings that lose data, and secrets."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from headwater.errors import OptionError, UnavailableError
from headwater.store.postgres.connections import PostgresDatabase
from headwater.store.postgres.opening import FORMAT, open_store
from tests.certificates import make_pair
from tests.edges import free_port
from tests.postgres import PostgresServer, own_postgres, postgres
from tests.programs import missing
from tests.unit.store.postgres.servers import append, commit, creation, loaded, opened, text


def test_servers_that_start_together_create_the_schema_once() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        stores = await asyncio.gather(*(open_store(url) for _ in range(4)))
        assert len({store.server for store in stores}) == 4
        for store in stores:
            await store.close()

    asyncio.run(main())
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT format, timeline FROM headwater.meta").fetchall() == [(FORMAT, 0)]
        assert connection.execute("SELECT count(*) FROM headwater.servers").fetchone() == (0,)


def test_a_newer_schema_is_refused() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url):
            pass
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE headwater.meta SET format = %s", (FORMAT + 1,))
        with pytest.raises(OptionError, match=f"format {FORMAT + 1}; this version supports format {FORMAT}"):
            await open_store(url)

    asyncio.run(main())


def test_a_role_with_few_privileges_is_enough_once_there_is_a_schema() -> None:
    url = postgres().clean_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS app")
        connection.execute("CREATE ROLE app LOGIN")
    own = conninfo.make_conninfo(url, user="app")

    async def main() -> None:
        with pytest.raises(OptionError, match=r"cannot be created: .*permission denied.* GRANT USAGE ON SCHEMA"):
            await open_store(own)
        async with opened(url):
            pass
        with pytest.raises(OptionError, match=r"permission denied .*GRANT SELECT, INSERT"):
            await open_store(own)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("GRANT USAGE ON SCHEMA headwater TO app")
            connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headwater TO app")
            connection.execute("GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA headwater TO app")
        async with opened(own) as (store,):
            await commit(store, creation(await store.reserve_id(), "a", b"data"))
            state = await loaded(store, "a")
            await store.locked([state.id])
            await commit(store, append(state, b"more"))
            await store.pack()
            assert await text(store, state.id) == b"datamore"
            assert await store.hold("views", 60) is not None
            assert (await store.moved_since(""))[1]

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_postgres_that_may_lose_commits_is_refused(setting: str) -> None:
    server = postgres()
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {setting} = off")
        try:
            connection.execute("SELECT pg_reload_conf()")
            with pytest.raises(OptionError, match=f"set to {setting} = off"):
                asyncio.run(_open_until_refused(server.clean_database()))
        finally:
            connection.execute(f"ALTER SYSTEM RESET {setting}")
            connection.execute("SELECT pg_reload_conf()")


async def _open_until_refused(url: str) -> None:
    """The new configuration is in force after a moment."""
    for _ in range(1000):
        store = await open_store(url)
        await store.close()


def test_a_role_without_synchronous_commits_is_refused() -> None:
    url = postgres().clean_database()
    with pytest.raises(OptionError, match="set to synchronous_commit = off"):
        asyncio.run(open_store(conninfo.make_conninfo(url, options="-c synchronous_commit=off")))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cr3t@127.0.0.1:{port}/name",
        "host=127.0.0.1 port={port} password=s3cr3t dbname=name",
    ],
)
def test_errors_do_not_show_passwords(url: str) -> None:
    with pytest.raises(UnavailableError, match=r"host=127\.0\.0\.1") as caught:
        asyncio.run(open_store(url.format(port=free_port())))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://user:s3cr3t@host:port/x?a=b", "password='s3cr3t"])
def test_a_url_that_cannot_be_parsed_is_not_shown(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        PostgresDatabase(url, "name")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"dbname": "not_there"}, "Create it with CREATE DATABASE"),
        ({"user": "nobody_here"}, "Create it with CREATE ROLE"),
        ({"user": "pg_monitor"}, "ALTER ROLE ... LOGIN"),
        ({"sslmode": "perhaps"}, "Correct the URL"),
        ({"sslmode": "require"}, "Correct sslmode"),
        ({"port": "none"}, "Correct the URL"),
        ({"connect_timeout": "soon"}, "Correct the URL"),
        ({"service": "not_there"}, "Correct the URL"),
        ({"options": "-c nonsense=1"}, "Correct the options"),
    ],
)
def test_what_waiting_does_not_help_says_what_to_do(change: dict[str, str], remedy: str) -> None:
    url = conninfo.make_conninfo(postgres().clean_database(), **change)
    with pytest.raises(OptionError, match=re.escape(remedy)):
        asyncio.run(open_store(url))


def test_a_host_that_may_come_back_is_waited_for() -> None:
    """One of two hosts has no such database, perhaps not yet, and the other one is down."""
    port = int(str(conninfo.conninfo_to_dict(postgres().url("x"))["port"]))
    url = f"postgresql://headwater@127.0.0.1:{port},127.0.0.1:{free_port()}/not_there"
    with pytest.raises(UnavailableError, match="Connection refused"):
        asyncio.run(open_store(url))


def test_an_unknown_parameter_is_named() -> None:
    with pytest.raises(OptionError, match="does not know: nonsense"):
        PostgresDatabase("postgresql://host/name?nonsense=1&sslmode=require", "name")
    with pytest.raises(OptionError, match="as %3D for ="):
        PostgresDatabase("postgresql://host/name?options=-c%20jit=on", "name")
    for url in ("postgresql://user:s3/x?cr3t=1@host/name", "postgresql://host/name?password=s3&cr3t=1"):
        with pytest.raises(OptionError) as caught:
            PostgresDatabase(url, "name")
        assert "cr3t" not in str(caught.value)


def test_passwords_come_from_the_url_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = postgres()
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS guarded")
        connection.execute("DROP ROLE IF EXISTS guarded")
        connection.execute("CREATE ROLE guarded LOGIN PASSWORD 's3cr3t'")
        connection.execute("CREATE DATABASE guarded OWNER guarded")

    async def main() -> None:
        with pytest.raises(OptionError, match=r"password authentication failed .*PGPASSWORD or a passfile") as caught:
            await open_store(server.url("guarded", "guarded:wr0ng"))
        assert "wr0ng" not in str(caught.value)
        with pytest.raises(OptionError, match=r"no password supplied.*PGPASSWORD or a passfile"):
            await open_store(server.url("guarded", "guarded"))
        with pytest.raises(UnavailableError, match="password authentication failed"):  # of a server that runs
            await PostgresDatabase(server.url("guarded", "guarded:wr0ng"), "test").connect()
        async with opened(server.url("guarded", "guarded:s3cr3t")):
            pass
        file = tmp_path / "pgpass"
        file.write_text("127.0.0.1:*:guarded:guarded:s3cr3t\n")
        file.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(file))
        async with opened(server.url("guarded", "guarded")) as (store,):
            await commit(store, creation(1, "a", b"x"))

    asyncio.run(main())


@pytest.mark.slow
def test_connections_with_tls_are_verified(tmp_path: Path) -> None:
    server = PostgresServer(ssl="on", ssl_cert_file="server.pem", ssl_key_file="server.key")
    try:
        pair = make_pair(server.create().data)
        for file in (pair.certificate, pair.key):
            server.own(file)
            file.chmod(0o600)
        try:
            server.start()
        except RuntimeError as error:
            if "SSL is not supported by this build" in str(error):
                missing("postgres-with-tls")
            raise
        trusted, other = tmp_path / "root.pem", make_pair(tmp_path, "other").certificate
        trusted.write_bytes(pair.certificate.read_bytes())
        url = server.new_database()

        async def main() -> None:
            verified = conninfo.make_conninfo(url, sslmode="verify-full", sslrootcert=str(trusted))
            async with opened(verified) as (store,):
                await commit(store, creation(1, "a", b"x"))
                assert await text(store, 1) == b"x"
            with pytest.raises(OptionError, match=r"certificate verify failed\. Correct sslmode and the files"):
                await open_store(conninfo.make_conninfo(verified, sslrootcert=str(other)))

        asyncio.run(main())
    finally:
        server.remove()


def test_a_standby_is_not_used() -> None:
    """A database that is read-only is no place for a server."""
    url = postgres().clean_database()
    read_only = conninfo.make_conninfo(url, options="-c default_transaction_read_only=on")
    with pytest.raises(UnavailableError, match="read-only"):
        asyncio.run(open_store(read_only))


@pytest.mark.slow
def test_the_connections_of_a_server_are_bounded() -> None:
    async def main() -> None:
        with own_postgres() as server:
            url = server.new_database()
            async with opened(url) as (store,):
                await commit(store, creation(1, "a", b"x" * 1000))
                await asyncio.gather(*(store.read(1, 0, 1000, 100) for _ in range(200)))
                with psycopg.connect(url) as connection:
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'headwater %'"
                    ).fetchone()
                assert row is not None
                assert row[0] <= 8

    asyncio.run(main())
