"""`headwater copy` to and from PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest
from bench.servers import headwater

from headwater.errors import DamagedDataError, OptionError
from headwater.store import copying
from headwater.store.contract import Store
from headwater.store.copying import Portion, compare
from headwater.store.embedded.copies import open_directory_source
from headwater.store.postgres.copies import PostgresCopy, open_postgres_source
from headwater.store.postgres.opening import open_store
from tests.command_line import invoke
from tests.copied import TEXT, fill, seen
from tests.postgres import postgres
from tests.unit.store.postgres.servers import commit, creation, opened

# Ends itself by SIGKILL before the statement of a number, of those of the connection that writes.
KILLED = """
import os, signal, sys
from headwater.cli import main
from headwater.store import copying
from headwater.store.postgres import copies
import psycopg

copying.COPY_BATCH_BYTES, copying.COPY_STREAMS = 60_000, 12
left = int(sys.argv.pop(1))
execute = psycopg.AsyncConnection.execute

async def counted(self, *arguments, **named):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return await execute(self, *arguments, **named)

psycopg.AsyncConnection.execute = counted
main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    directory = tmp_path_factory.mktemp("copy") / "source"
    with headwater("--data-dir", str(directory), "--limit", "segment_bytes=300000") as server:
        root = f"http://127.0.0.1:{server.port}"
        fill(root)
        answers = seen(root)
    return directory, answers


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "COPY_BATCH_BYTES", 60_000)
    monkeypatch.setattr(copying, "COPY_STREAMS", 12)


def run(*arguments: object) -> tuple[int, str]:
    result = invoke(["copy", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def marker(url: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT copying FROM headwater.meta").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.usefixtures("small_portions")
def test_there_and_back_again(source: tuple[Path, dict[str, object]], tmp_path: Path) -> None:
    directory, answers = source
    url, back = postgres().clean_database(), tmp_path / "back"
    code, said = run(directory, url)
    assert (code, "compared them" in said) == (0, True), said
    assert marker(url) is None
    code, said = run(url, back)
    assert (code, "compared them" in said) == (0, True), said
    asyncio.run(_compare(directory, back))
    with headwater("--data-dir", str(back)) as server:
        assert seen(f"http://127.0.0.1:{server.port}") == answers
    with headwater("--store", url) as server:
        root = f"http://127.0.0.1:{server.port}"
        assert seen(root) == answers
        retry = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "39"}
        assert httpx.post(f"{root}/v1/stream/big", headers=TEXT | retry, content="again").status_code == 204
        assert httpx.post(f"{root}/v1/stream/big", headers=TEXT, content="more").status_code == 204
        assert httpx.put(f"{root}/v1/stream/new", headers=TEXT).status_code == 201
        assert httpx.get(f"{root}/v1/stream/child", params={"offset": "-1"}).text == "inherited"


async def _compare(one: Path, other: Path) -> None:
    first, second = await open_directory_source(one, "one"), await open_directory_source(other, "other")
    try:
        await compare(first.store, second.store, lambda *_: None)
        assert first.store.next_id == second.store.next_id
        assert await _producers(first.store) == await _producers(second.store)
    finally:
        await first.close()
        await second.close()


async def _producers(store: Store) -> list[object]:
    """All producers, in their order, which decides who expires first."""
    page = await store.page("", "", 1000)
    states = [await store.load_id(state.id) for state in page.states]
    return [list(state.producers.items()) for state in states if state is not None]


@pytest.mark.usefixtures("small_portions")
def test_an_interrupted_copy_goes_on(
    source: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _ = source
    url = postgres().clean_database()
    put = PostgresCopy.put
    portions: list[int] = []

    class Killed(BaseException):
        pass

    async def put_one(copy: PostgresCopy, portion: Portion) -> None:
        await put(copy, portion)
        if portion.states or portion.runs:
            portions.append(len(portion.states))
            raise Killed

    async def not_completed(copy: PostgresCopy) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(PostgresCopy, "put", put_one)
        patched.setattr(PostgresCopy, "complete", not_completed)
        for _ in range(100):
            before = len(portions)
            with pytest.raises(Killed):
                run(directory, url)
            if len(portions) == before:
                break
            with pytest.raises(OptionError, match=r"is a copy of .* that was not finished; run headwater copy again"):
                asyncio.run(open_store(url))
        code, said = run(url, tmp_path / "other")
        assert (code, "that was not finished" in said) == (1, True)
    assert len(portions) > 3
    code, said = run(directory, url)
    assert code == 0, said
    code, said = run(directory, url)
    assert (code, "is not empty, and no unfinished copy: there are streams" in said) == (1, True)


@pytest.mark.slow
@pytest.mark.usefixtures("small_portions")
def test_a_copy_goes_on_after_a_kill_at_any_statement(source: tuple[Path, dict[str, object]]) -> None:
    directory, _ = source
    url = postgres().clean_database()
    codes = []
    for number in range(2, 60, 3):
        command = [sys.executable, "-c", KILLED, str(number), "copy", str(directory), url]
        codes.append(subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": "src"}).returncode)
        if codes[-1] == 0:
            break
        assert codes[-1] == -signal.SIGKILL
    assert len(codes) > 3
    if codes[-1]:
        code, said = run(directory, url)
        assert code == 0, said


def test_refusals(source: tuple[Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = source
    url = postgres().clean_database()
    monkeypatch.setattr("headwater.limits.POSTGRES_IN_USE_S", 0.2)
    code, said = run("mysql://user:s3cr3t@host/name", url)
    assert (code, "mysql:// is no store" in said, "s3cr3t" in said) == (2, True, False)
    code, said = run("postgresql://user:s3cr3t@127.0.0.1:1/name", tmp_path / "copy")
    assert (code, "s3cr3t" in said) == (6, False), said
    code, said = run(url, tmp_path / "copy")
    assert (code, "has no schema headwater" in said) == (1, True), said
    with headwater("--store", url) as server:
        for places in ((url, tmp_path / "copy"), (directory, url)):
            code, said = run(*places)
            assert (code, "is in use by headwater " in said, str(server.pid) in said) == (1, True, True), said
        assert httpx.put(f"{server.url}/a", headers=TEXT).is_success
    assert not (tmp_path / "copy").exists()
    code, said = run(directory, url)
    assert (code, "is not empty, and no unfinished copy" in said) == (1, True), said
    code, said = run(url, url)
    assert (code, "cannot be copied to itself" in said) == (1, True), said

    async def not_completed(copy: PostgresCopy) -> None:
        await copy.close()

    other = postgres().new_database()
    with monkeypatch.context() as patched:
        patched.setattr(PostgresCopy, "complete", not_completed)
        assert run(url, other)[0] == 0
    code, said = run(directory, other)
    assert (code, "is an unfinished copy of database" in said) == (1, True), said
    with headwater("--store", url) as server:
        assert httpx.post(f"{server.url}/a", headers=TEXT, content="x").is_success
    code, said = run(url, other)
    assert (code, "was changed after the unfinished copy" in said) == (1, True), said


@pytest.mark.slow
def test_a_copy_from_one_database_to_another(source: tuple[Path, dict[str, object]]) -> None:
    directory, answers = source
    url, other = postgres().clean_database(), postgres().new_database()
    assert run(directory, url)[0] == 0
    code, said = run(url, other)
    assert code == 0, said
    with headwater("--store", other) as server:
        assert seen(f"http://127.0.0.1:{server.port}") == answers


def test_a_server_does_not_start_during_a_copy() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a", b"x"))
        copied = await open_postgres_source(url)
        with pytest.raises(OptionError, match="headwater copy uses the database"):
            await open_store(url)
        await copied.check()
        await copied.close()
        async with opened(url) as (store,):
            assert await store.load("a") is not None

    asyncio.run(main())


def test_a_server_that_was_not_seen_stores_nothing_more() -> None:
    """Its connections were lost, so a copy could begin."""
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)  # without background work, which would take the lock again
        await commit(store, creation(1, "a", b"x"))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headwater %'"
            )
        copied = await open_postgres_source(url)
        with pytest.raises(DamagedDataError, match="or headwater copy took it"):
            await commit(store, creation(2, "b", b"y"))
        assert copied.store.streams == 1
        await copied.check()
        await copied.close()
        await store.close()

    asyncio.run(main())


def test_a_difference_is_found(source: tuple[Path, dict[str, object]], monkeypatch: pytest.MonkeyPatch) -> None:
    directory, _ = source
    url = postgres().clean_database()
    put = PostgresCopy.put

    async def damaged(copy: PostgresCopy, portion: Portion) -> None:
        if portion.runs:
            run, state = portion.runs[0]
            portion.runs[0] = (run._replace(data=b"?" + run.data[1:]), state)
        await put(copy, portion)

    monkeypatch.setattr(PostgresCopy, "put", damaged)
    code, said = run(directory, url)
    assert (code, "is not the same in the copy and its source" in said) == (1, True)
    assert marker(url) is not None
