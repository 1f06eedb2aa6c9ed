"""Jobs that are killed before and after each of their durable effects and started again have the right result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from headwater.client import Client
from headwater.pipeline.materializing import buckets
from tests.servers import Server
from tests.unit.pipeline.kills.effects import Effect, live, observing, sites
from tests.unit.pipeline.kills.stages import SCENES, SCENES_OF_STREAMS, Make, PublishedAfterRefusal


def result(make: Make, directory: Path, server: Server, client: Client, dies_at: int | None = None) -> list[Effect]:
    """Run a scene with at most one kill, and check what it leaves. Returns its effects up to the kill, or all."""
    scene = make(directory, server.url, client)
    effects: list[Effect] = []
    with observing():
        for phase in range(scene.phases):
            scene.begin(phase)
            with scene.patched():
                life = live(lambda: scene.run(phase), None if dies_at is None else dies_at - len(effects))  # noqa: B023
                effects += life.effects
                if life.is_over:
                    live(lambda: scene.run(phase))  # noqa: B023
                    dies_at = None
    scene.check()
    return effects


Places: TypeAlias = Callable[[list[Effect]], list[int]]  # the numbers of effects before which to kill
QUICK = ("publish-rows", "replay", "snapshot")
REACHING = (*SCENES_OF_STREAMS, "materialize-merge-grown", "materialize-buckets-scd2-sequence")
# Sites that no job reaches, and why.
NOT_OF_A_JOB = {
    "spark/cache.py": "the session's cache, made before a job starts",
    "spark/home.py": "the same",
    "spark/java.py": "the same",
    "spark/skipping.py": "dead letters of a source, which no job asks for",
}


PARTS = 4
CASES = [(name, part) for name in SCENES for part in range(PARTS if name.startswith("materialize") else 1)]


def each(part: int, parts: int) -> Places:
    """Before each effect, or one of several parts of these. Before the next one is after this one."""
    return lambda effects: list(range(part, len(effects), parts))


def once_per_place(effects: list[Effect]) -> list[int]:
    """Once for each place in the code."""
    return sorted({str(effect.sites) or effect.what: number for number, effect in enumerate(effects)}.values())


def at_commits(effects: list[Effect]) -> list[int]:
    return [number for number, effect in enumerate(effects) if effect.what == "DeltaTable.create_write_transaction"]


def kill_at(places: Places, name: str, directory: Path, server: Server, client: Client) -> None:
    effects = result(SCENES[name], directory / "whole", server, client)
    failures = []
    for number in places(effects):
        try:
            result(SCENES[name], directory / str(number), server, client, number)
        except Exception as error:  # noqa: BLE001  # all of them are reported
            before = effects[number - 1] if number else "the start"
            failures.append(f"after {before}, before {effects[number]}: {type(error).__name__}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", QUICK)
def test_a_kill_at_each_place(name: str, tmp_path: Path, server: Server, client: Client) -> None:
    kill_at(once_per_place, name, tmp_path, server, client)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), CASES)
def test_a_kill_at_each_effect(name: str, part: int, tmp_path: Path, server: Server, client: Client) -> None:
    parts = len([one for one, _ in CASES if one == name])
    kill_at(each(part, parts), name, tmp_path, server, client)


def test_every_effect_of_the_code_is_among_them(tmp_path: Path, server: Server, client: Client) -> None:
    """A call that makes something durable, and that no scene reaches, would never be killed."""
    reached: set[str] = set()
    for name in REACHING:
        for effect in result(SCENES[name], tmp_path / name, server, client):
            reached |= {str(site) for site in effect.sites}
    every = {str(site) for site in sites() if site.file not in NOT_OF_A_JOB}
    assert sorted(every - reached) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["buckets", "threads", "tasks"])
def test_a_kill_shows_a_job_that_repeats_itself(
    path: str, tmp_path: Path, server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the batches of kept events, a history that is killed between two commits loses the ends of rows."""
    monkeypatch.setattr(buckets, "kept_before", lambda kept, _: kept)
    with pytest.raises(AssertionError, match=r"Lake.commit: .*, before .*Lake.commit: "):
        kill_at(at_commits, f"materialize-{path}-scd2-sequence", tmp_path, server, client)


def test_a_version_that_was_sent_in_part_is_not_skipped(tmp_path: Path, server: Server, client: Client) -> None:
    """The difference to the version before it would not undo what was sent of it."""

    class SentInPart(PublishedAfterRefusal):
        refused = {"id": ["a", "b", "c" * (5 << 20)], "n": [2, 2, 7]}  # larger than one append
        versions = ({"a": 1, "b": 2}, {}, {"a": 1, "b": 2})

        def check(self) -> None:
            assert self.is_partial
            assert self.sent()[2:] == [("a", 2)]

    result(SentInPart, tmp_path, server, client)
