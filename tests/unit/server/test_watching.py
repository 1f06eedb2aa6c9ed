from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from headwater.server.watching import FileWatcher
from tests import virtual_time
from tests.waiting import wait_for_async, wait_until_async

EVERY_S = 0.01


class Place:
    """A file that holds a number, and the numbers that were taken from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text("1")
        self.used: list[int] = []
        self.loads = 0

    def load(self) -> int:
        self.loads += 1
        return int(self.path.read_text())

    def watched(self, every_s: float = EVERY_S) -> FileWatcher:
        watcher = FileWatcher(every_s)
        self.used.append(watcher.add("the number", [self.path], self.load, self.used.append))
        return watcher

    async def until_used(self, number: int) -> None:
        await wait_for_async(lambda: self.used[-1], number)

    async def until_loaded(self, times: int) -> None:
        await wait_until_async(lambda: self.loads >= times)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "number")


def test_a_file_is_loaded_again_when_it_is_written_replaced_or_linked_anew(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        watcher = place.watched()
        watcher.start()
        place.path.write_text("2")
        await place.until_used(2)
        other = tmp_path / "other"
        other.write_text("3")
        os.replace(other, place.path)
        await place.until_used(3)
        other.write_text("4")
        (tmp_path / "link").symlink_to(other)
        os.replace(tmp_path / "link", place.path)
        await place.until_used(4)
        other.write_text("5")  # behind the link
        await place.until_used(5)
        await watcher.stop()

    virtual_time.run(main())
    assert place.used == [1, 2, 3, 4, 5]


def test_the_same_size_and_time_with_another_inode_is_a_change(place: Place, tmp_path: Path) -> None:
    async def main() -> None:
        watcher = place.watched()
        watcher.start()
        was = place.path.stat()
        other = tmp_path / "other"
        other.write_text("2")
        os.utime(other, ns=(was.st_atime_ns, was.st_mtime_ns))
        os.replace(other, place.path)
        await place.until_used(2)
        await watcher.stop()

    virtual_time.run(main())


def test_what_cannot_be_loaded_is_logged_once_and_the_old_one_stays(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        watcher = place.watched()
        watcher.start()
        place.path.write_text("many")
        await place.until_loaded(2)
        await asyncio.sleep(10 * EVERY_S)
        assert place.loads == 2  # and not at every look
        place.path.unlink()
        await place.until_loaded(3)
        place.path.write_text("2")
        await place.until_used(2)
        await watcher.stop()

    virtual_time.run(main())
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(messages) == 2
    assert all(text.startswith("the number cannot be loaded, the previous content stays in use: ") for text in messages)
    assert place.used == [1, 2]


def test_when_told_everything_is_loaded_again_at_once(place: Place) -> None:
    async def main() -> None:
        watcher = place.watched(every_s=3600)
        watcher.start()
        watcher.reload()
        await place.until_loaded(2)
        await watcher.stop()

    virtual_time.run(main())
    assert place.used == [1, 1]


def test_a_change_before_the_start_is_not_missed(place: Place) -> None:
    async def main() -> None:
        watcher = place.watched()
        place.path.write_text("2")
        watcher.start()
        await place.until_used(2)
        await watcher.stop()

    virtual_time.run(main())


def test_an_error_at_first_is_the_callers(place: Place) -> None:
    place.path.write_text("many")
    with pytest.raises(ValueError, match="many"):
        place.watched()


def test_nothing_to_watch_is_no_task(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        watcher = FileWatcher()
        watcher.start()
        assert len(asyncio.all_tasks()) == 1
        watcher.reload()
        await watcher.stop()

    virtual_time.run(main())
    assert "there is nothing to load" in caplog.text


def test_a_file_that_cannot_be_loaded_is_reported_until_it_can(place: Place) -> None:
    async def main() -> None:
        watcher = place.watched()
        (watched,) = watcher.watched
        watcher.start()
        for number in (1, 2):
            place.path.write_text("many" * number)
            await wait_until_async(lambda count=number: watched.failures == count)  # type: ignore[misc]
            assert watched.fault
        place.path.write_text("2")
        await place.until_used(2)
        await wait_until_async(lambda: not watched.fault)
        assert (watched.label, watched.failures) == ("number", 2)
        await watcher.stop()

    asyncio.run(main())


def test_a_file_that_cannot_be_read_is_tried_again_without_a_change_of_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        readable, load = [False], place.load

        def permitted() -> int:
            if not readable[0]:
                place.loads += 1
                raise PermissionError(13, "Permission denied", str(place.path))
            return load()

        watcher = place.watched()
        (watched,) = watcher.watched
        watched._load = permitted
        watcher.start()
        place.path.write_text("2")
        await place.until_loaded(5)
        assert (watched.failures, place.used) == (1, [1])
        readable[0] = True
        await place.until_used(2)
        await watcher.stop()

    asyncio.run(main())
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
