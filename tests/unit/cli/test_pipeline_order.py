"""The order of jobs that feed each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.pipeline.config import load_pipeline
from headwater.cli.pipeline.ordering import order_of
from headwater.errors import OptionError

MATERIALIZE = "job = 'materialize'\nstreams = 'in/*'\ntable = 'lake/m'\n"
PUBLISH = "job = 'publish'\ntable = 'lake/m'\nkeys = 'key'\ntype = 't'\nto = 'out/x'\n"
ARCHIVE = "job = 'archive'\nstreams = 'out/**'\ntable = 'lake/a'\n"
REPLAY = "job = 'replay'\ntable = 'lake/a'\nto = 'copy'\n"
SNAPSHOT = "job = 'snapshot'\nstreams = 'copy/out/x'\n"


def order(tmp_path: Path, *jobs: str, shared: str = "once = true") -> dict[str, set[str]]:
    file = tmp_path / "pipeline.toml"
    file.write_text("\n".join([shared, *(f"[jobs.{'abcdefg'[n]}]\n{job}" for n, job in enumerate(jobs))]))
    return order_of(load_pipeline(file).jobs)


def test_a_chain_runs_from_its_beginning(tmp_path: Path) -> None:
    """Whatever the order in the file."""
    waits = order(tmp_path, SNAPSHOT, REPLAY, ARCHIVE, PUBLISH, MATERIALIZE)
    assert list(waits) == ["e", "d", "c", "b", "a"]
    assert waits == {"e": set(), "d": {"e"}, "c": {"d"}, "b": {"c"}, "a": {"b"}}


def test_jobs_that_do_not_feed_each_other_run_together(tmp_path: Path) -> None:
    other = MATERIALIZE.replace("lake/m", "lake/n")
    assert order(tmp_path, MATERIALIZE, other, SNAPSHOT) == {"a": set(), "b": set(), "c": set()}
    elsewhere = f"{ARCHIVE}url = 'http://other'\n"
    assert order(tmp_path, PUBLISH, elsewhere) == {"a": set(), "b": set()}
    same = f"{ARCHIVE}url = 'http://127.0.0.1:4437/v1/stream/'\n"
    assert order(tmp_path, PUBLISH, same) == {"a": set(), "b": {"a"}}


@pytest.mark.parametrize(
    ("written", "read", "feeds"),
    [
        ("out/x", "out/x", True),
        ("out/x", "out/y", False),
        ("out/x", "in/z,out/x", True),
        ("out/x", '["out/x"]', True),
        ("out/x", "out/*", True),
        ("/out/x/", "out/?", True),
        ("out/x/y", "out/*", False),
        ("out/x", "**", True),
    ],
)
def test_streams(tmp_path: Path, written: str, read: str, feeds: bool) -> None:
    reading = ARCHIVE.replace("out/**", read)
    assert order(tmp_path, reading, PUBLISH.replace("out/x", written))["a"] == ({"b"} if feeds else set())


def test_a_helper_table_that_is_published(tmp_path: Path) -> None:
    bad = PUBLISH.replace("lake/m", "./lake/m.quarantine")
    assert order(tmp_path, bad, MATERIALIZE)["a"] == {"b"}


def test_a_replay_to_the_own_paths(tmp_path: Path) -> None:
    replay = "job = 'replay'\ntable = 'lake/old'\nstreams = 'out/*'\n"
    assert order(tmp_path, ARCHIVE, replay)["a"] == {"b"}
    assert order(tmp_path, ARCHIVE.replace("out/**", "in/**"), replay)["a"] == set()


def test_jobs_that_do_not_end_start_in_order_and_do_not_wait(tmp_path: Path) -> None:
    waits = order(tmp_path, PUBLISH, MATERIALIZE, shared="")
    assert list(waits) == ["b", "a"]  # the table must exist
    assert waits == {"a": set(), "b": set()}
    assert order(tmp_path, f"{PUBLISH}once = true\n", MATERIALIZE, shared="")["a"] == set()


def test_a_circle(tmp_path: Path) -> None:
    back = MATERIALIZE.replace("in/*", "out/*")
    with pytest.raises(OptionError, match=r"\[jobs\.[ab]\] → .* feed each other"):
        order(tmp_path, back, PUBLISH)
    assert set(order(tmp_path, back, PUBLISH, shared="")) == {"a", "b"}
