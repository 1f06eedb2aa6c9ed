"""A data directory of format 1, written by the last version of it, which was killed with unfolded data."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from headwater.engine import Engine
from headwater.engine.messages import FindRecords
from headwater.errors import StreamClosedError, StreamGoneError
from headwater.log.commands import Append, Create, ForkRequest
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.producers import ProducerTuple
from headwater.store.embedded import layout
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.journal import UnknownFormatError
from headwater.store.embedded.opening import open_store
from tests.unit.store.embedded.test_directory import FOLDED, UNFOLDED, append, content, live

FIXTURE = Path(__file__).with_name("format1.tar.xz")
FIRST_MS = 1_760_000_000_000
LINES = [f"{number}:{'x' * 300};".encode() for number in range(320)]
TEXT = b"start;" + b"".join(LINES)
MIDDLE = b"start;" + b"".join(LINES[:100])
JSON = [{"n": 0}] + [value for n in range(20) for value in ({"n": n}, n)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data"


async def check_content(engine: Engine) -> None:
    assert await content(engine, "text") == TEXT
    assert json.loads(b"[" + (await content(engine, "json"))[:-1] + b"]") == JSON
    assert await content(engine, "fork/now") == b"start;" + b"".join(LINES[:300]) + b"own;"
    assert await content(engine, "fork/begin") == b"own;"
    assert await content(engine, "fork/middle") == MIDDLE
    assert await content(engine, "fork/of/fork") == MIDDLE + b"deep;"
    assert json.loads(b"[" + (await content(engine, "fork/sub"))[:-1] + b"]") == [*JSON[:21], {"n": 10}]
    assert await content(engine, "fork/soft") == b"kept;"
    assert await content(engine, "late") == b"unfolded;"
    assert await content(engine, "fork/late") == b"x"
    assert await content(engine, "fork/late2") == b"unfolded;y"
    assert (await engine.info("closed")).closed
    with pytest.raises(StreamGoneError):
        await engine.info("soft")


@pytest.mark.slow
@pytest.mark.parametrize("limits", [UNFOLDED, FOLDED], ids=["unfolded", "folded"])
def test_everything_is_there_after_the_upgrade_and_the_next_start(directory: Path, limits: object) -> None:
    async def first(engine: Engine) -> None:
        await check_content(engine)
        retry = Append("text", engine.now_ms(), b"again", "text/plain", ProducerTuple("p1", 0, 106), "00319")
        assert (await engine.execute(retry)).duplicate
        with pytest.raises(StreamClosedError):
            await append(engine, "closed", b"", producer=ProducerTuple("q", 2, 0), close=True)
        await asyncio.sleep(1 if limits is FOLDED else 0)

    live(directory, first, limits)  # type: ignore[arg-type]
    live(directory, check_content, limits)  # type: ignore[arg-type]
    assert (directory / "FORMAT").read_text() == "headwater data directory, format 2\n"
    assert check_directory(directory, lambda _: None).problems == []


def test_forks_are_still_recognised(directory: Path) -> None:
    async def body(engine: Engine) -> None:
        now_ms = engine.now_ms()
        source = (await engine.info("text")).id
        for path, fork in (
            ("fork/now", ForkRequest("text")),
            ("fork/begin", ForkRequest("text", BEGINNING)),
            ("fork/middle", ForkRequest("text", Offset(source, len(MIDDLE)))),
            ("fork/late", ForkRequest("late", BEGINNING)),
        ):
            assert (await engine.execute(Create(path=path, now_ms=now_ms, fork=fork))).existed

    live(directory, body)


@pytest.mark.slow
def test_records_without_a_time_get_the_latest_possible_time(directory: Path) -> None:
    async def body(engine: Engine) -> None:
        await append(engine, "text", b"now")
        found = (await engine.records(FindRecords("text", limit=1000))).records
        times = [record.at_ms for record in found]
        assert times == sorted(times)
        assert len(times) == 1 + 320 + 1
        assert set(times[:301]) == {FIRST_MS + 300_000}  # when the last of them was appended
        assert times[301] > times[300]
        begin = (await engine.records(FindRecords("text", at_ms=FIRST_MS + 300_001, limit=1))).start
        assert begin == len(b"start;" + b"".join(LINES[:300]))

    live(directory, body)
    live(directory, lambda engine: asyncio.sleep(1.5), FOLDED)  # old and new records end up in one chunk
    assert check_directory(directory, lambda _: None).problems == []


def test_an_interrupted_upgrade_is_completed_by_the_next(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout, "write_format", killed)
    with pytest.raises(KeyboardInterrupt):
        open_store(directory, UNFOLDED)
    monkeypatch.undo()
    live(directory, check_content)


def test_commands_say_how_to_upgrade(directory: Path) -> None:
    with pytest.raises(UnknownFormatError, match="start a server on it once"):
        check_directory(directory, lambda _: None)
