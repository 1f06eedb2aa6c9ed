"""What charts show."""

from __future__ import annotations

from pathlib import Path

from bench.charts import GOAL, OURS, OURS_TOO, PEERS, draw, draw_compaction, draw_day, draw_soak, panels
from bench.machine import describe_machine
from bench.report import Row

APPENDS = [
    Row("appends, 1 connections", "headwater", 50.0, "/s"),
    Row("appends, 1 connections", "node in memory", 100.0, "/s", 0.5, "≥ 2"),
    Row("appends, 64 connections", "headwater", 900.0, "/s"),
    Row("appends, 64 connections", "node in memory", 300.0, "/s", 3.0, "≥ 2"),
    Row("appends, 64 connections", "node file-backed", 90.0, "/s", 10.0),
]


def test_ours_and_the_peers_share_a_panel_and_the_ratio_is_beside_ours() -> None:
    (panel,), alone = panels(APPENDS)
    assert panel.title == "Appends: per second, higher is better"
    few, many = panel.groups["1 connection"], panel.groups["64 connections"]
    assert [(bar.label, bar.ratio, bar.missed) for bar in few] == [
        ("Headwater", "0.50×", "goal ≥ 2 missed"),
        ("Node in memory", "", ""),
    ]
    assert [(bar.ratio, bar.colour) for bar in many] == [("3.00× · 10.0×", OURS), ("", PEERS[0]), ("", PEERS[1])]
    assert alone == []


def test_a_figure_without_a_peer_has_its_goal_beside_it_or_no_bar() -> None:
    rows = [
        Row("read", "headwater", 600.0, "MB/s", goal="≥ 500"),
        Row("checkpoint", "headwater", 540.0, "kB"),
    ]
    (panel,), alone = panels(rows)
    assert [(bar.label, bar.ratio, bar.colour) for bar in panel.groups[""]] == [
        ("Headwater", "1.20×", OURS),
        ("goal ≥ 500", "", GOAL),
    ]
    assert alone == ["checkpoint: 540 kB"]


def test_nothing_is_no_fraction_of_a_limit() -> None:
    (panel,), _ = panels([Row("longest task", "console", 0.0, "ms", goal="≤ 200")])
    assert [(bar.label, bar.ratio) for bar in panel.groups[""]] == [("console", ""), ("goal ≤ 200", "")]


def test_a_ratio_to_a_limit_is_said_in_words() -> None:
    panel, alone = panels([Row("memory, 3 x capacity", "headwater", 600.0, "MiB", 1.2, "< 1")])
    assert panel == []
    assert alone == ["memory, 3 x capacity: 600 MiB (ratio 1.2, goal < 1, missed)"]


def test_a_goal_that_several_share_is_drawn_once() -> None:
    rows = [Row(name, "headwater", 60.0, "ms", goal="< 50", panel="loop") for name in ("uploads", "forks")]
    (panel,), _ = panels(rows)
    assert panel.title == "Loop: milliseconds, lower is better"
    assert [(bar.label, bar.ratio, bar.missed) for bar in panel.groups[""]] == [
        ("uploads", "", "goal < 50 missed"),
        ("forks", "", "goal < 50 missed"),
        ("goal < 50", "", ""),
    ]


def test_our_own_base_has_a_colour_of_its_own() -> None:
    rows = [
        Row("preload, full replay", "headwater", 2.0, "s", panel="preload"),
        Row("preload, from a snapshot", "headwater", 0.5, "s", 4.0, panel="preload"),
    ]
    (panel,), _ = panels(rows)
    assert [(bar.label, bar.colour) for bar in panel.groups[""]] == [
        ("full replay", OURS_TOO),
        ("from a snapshot", OURS),
    ]


def test_charts_are_images_as_wide_as_each_other(tmp_path: Path) -> None:
    machine = describe_machine()
    keys = ("appends_per_s", "p50_ms", "p99_ms", "disk_mb", "live_mb", "memory_mb", "descriptors")
    draw("durable", APPENDS, machine, tmp_path / "durable.png")
    windows = [{"at_s": at_s, "killed": at_s == 60, **dict.fromkeys(keys, at_s)} for at_s in (30, 60, 90)]
    draw_soak(windows, machine, tmp_path / "soak.png")
    figures = ("files", "disk_mb", "log_mb", "batch_ms", "driver_mb")
    days = [{"series": "defaults", "batch": at, "of": 3, **dict.fromkeys(figures, at)} for at in (1, 2, 3)]
    draw_day(days, machine, tmp_path / "day.png")
    measured = dict.fromkeys(("updates", "disk_mb", "memory_mb", "start_ms"), 2)
    hour = [{"series": name, "minute": at, **measured} for name in ("compacted", "not compacted") for at in (2, 60)]
    draw_compaction(hour, APPENDS, machine, tmp_path / "compaction.png")
    for name in ("durable", "soak", "day", "compaction"):
        data = (tmp_path / f"{name}.png").read_bytes()
        assert data[:4] == b"\x89PNG"
        assert int.from_bytes(data[16:20]) == 1600
