"""The history of the benches, and the page that is made of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from bench.history import HISTORY, RENAMED, RESULTS, Run, append_run, read_history, rows_of, run_of, save
from bench.report import Row, is_met
from tools.results import PAGE, lines_of, written

MACHINE = {"cpu": "2 cores", "memory_gib": "24", "kernel": "6.18", "node": "v20.0.0"}


def run(ratio: float, commit: str, goal: str = "≥ 2", bench: str = "durable") -> Run:
    rows = [
        Row("appends", "headwater", 100.0 * ratio, "/s", note="p50 1 ms"),
        Row("appends", "node in memory", 100.0, "/s", ratio, goal),
    ]
    return Run(bench, "2026-11-16", commit, "3.11.7", "every append is synced", MACHINE, rows)


def test_a_run_is_appended_and_nothing_before_it_changes(tmp_path: Path) -> None:
    append_run(run(2.0, "aaa"), tmp_path)
    before = (tmp_path / HISTORY).read_bytes()
    append_run(run(3.0, "bbb"), tmp_path)
    assert (tmp_path / HISTORY).read_bytes().startswith(before)
    assert read_history(tmp_path) == [run(2.0, "aaa"), run(3.0, "bbb")]


def test_save_keeps_a_line_a_result_a_table_and_a_chart(tmp_path: Path) -> None:
    for ratio in (2.0, 3.0):
        save("durable", {"rows": [asdict(row) for row in run(ratio, "").rows]}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "durable.json",
        "durable.png",
        "durable.txt",
        HISTORY,
    ]
    first, second = read_history(tmp_path)
    assert (first.bench, first.rows, second.rows) == ("durable", run(2.0, "").rows, run(3.0, "").rows)
    assert first.commit
    assert {*first.machine} == {*MACHINE}
    assert json.loads((tmp_path / "durable.json").read_text())["rows"][1]["ratio"] == 3.0


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_result_has_its_line_in_the_history(path: Path, tmp_path: Path) -> None:
    newest = [run for run in read_history() if run.bench == path.stem][-1]
    append_run(run_of(path.stem, json.loads(path.read_text()), newest.commit), tmp_path)
    assert read_history(tmp_path) == [newest]


def test_rows_of_stored_runs_have_their_current_names(tmp_path: Path) -> None:
    [old, new], *_ = RENAMED.items()
    append_run(replace(run(2.0, "aaa"), rows=[Row(old, old, 1.0, "/s", note=old, panel=old)]), tmp_path)
    assert read_history(tmp_path)[0].rows == [Row(new, new, 1.0, "/s", note=new, panel=new)]
    shown = {text for each in read_history() for row in each.rows for text in (row.bench, row.server, row.panel)}
    assert not shown & RENAMED.keys()


def test_the_page_is_what_the_history_says() -> None:
    assert PAGE.read_text() == written(read_history()), "run python -m tools.results"


def test_the_page_shows_the_newest_run_and_how_the_ratio_changed() -> None:
    page = written([run(1.5, "aaa"), run(1.8, "bbb")])
    assert "| **1.80×** | appends | 180/s | node in memory: 100/s | ≥ 2 | **no** | 1.50× → 1.80× |" in page
    assert (
        "at `bbb`, on 2 cores, 24 GiB, Linux 6.18, Python 3.11.7, Node 20.0.0.\nfsync: every append is synced." in page
    )
    assert "appends, 1.80× node in memory, goal ≥ 2" in page
    assert "None." in written([run(2.0, "aaa")])


def test_what_earlier_runs_did_not_measure_is_left_out() -> None:
    early = replace(run(1.0, "aaa"), rows=[])
    later = [run(2.0, "bbb"), replace(run(2.0, "ccc"), rows=[]), run(3.0, "ddd")]
    assert "| 2.00× → - → 3.00× |" in written([early, *later])


def test_rows_of_one_name_are_told_apart_by_panel_or_note() -> None:
    rows = [Row("uploads", "headwater", 1.0, unit, panel=panel) for unit, panel in (("ms", "loop"), ("MiB", "memory"))]
    assert [line.what for line in lines_of(rows)] == ["loop; uploads", "memory; uploads"]
    rows = [Row("a batch", "headwater", value, "s", note=f"run {value}") for value in (1, 2)]
    assert [line.what for line in lines_of(rows)] == ["a batch; run 1", "a batch; run 2"]


def test_the_goal_of_a_ratio_without_a_peer_is_for_the_ratio() -> None:
    (line,) = lines_of([Row("memory", "headwater", 400.0, "MiB", 0.8, "< 1")])
    assert (line.shown, line.compared_with, line.met) == ("0.80×", "", True)


def test_results_that_are_not_rows_become_rows() -> None:
    hostile = {"rows": [{"attack": "nothing", "loop_ms": 4.0, "memory_mib": 48.0, "light_failures": 2}]}
    assert [(row.bench, row.value, row.goal, row.note) for row in rows_of("hostile", hostile)] == [
        ("no attack", 4.0, "< 50", "2 others failed"),
        ("no attack", 48.0, "< 512", "2 others failed"),
    ]
    keys = ("appends_per_s", "p50_ms", "p99_ms", "disk_mb", "live_mb", "memory_mb")
    soak = {"windows": [{"killed": value == 2, **dict.fromkeys(keys, value)} for value in (1, 2, 9)]}
    assert [(row.value, row.note) for row in rows_of("soak", soak)][:4] == [
        (2, "1 kills"),
        (2, ""),
        (2, ""),
        (9, "live data 9 MB at most"),
    ]
    keys = ("full_mib_per_s", "unchanged_s", "one_percent_s", "restore_mib_per_s", "behind_p50_s", "behind_max_s")
    rates = {"appends_per_s": 100.0, "appends_per_s_beside": 90.0, "ratio": 0.9}
    (line, *_) = [
        line
        for line in lines_of(rows_of("backup", {"mebibytes": 512, **dict.fromkeys(keys, 1.0), **rates}))
        if line.peer
    ]
    assert (line.what, line.compared_with, line.shown) == ("during a backup", "without a backup", "0.90×")


def test_a_day_has_its_end_and_whether_it_levels_off() -> None:
    keys = ("files", "disk_mb", "log_mb", "batch_ms", "driver_mb")
    samples = [
        {"series": "defaults", "batch": at, "of": 8, **dict.fromkeys(keys, at)} for at in (4, 5, 6, 7, 8, 8, 8, 9)
    ]
    rows = rows_of("day", {"samples": samples})
    assert [(row.bench, row.value, is_met(row)) for row in rows][:2] == [
        ("files of the table, defaults", 9, None),
        ("files of the table: maximum after noon over that before", 9 / 7, False),
    ]
