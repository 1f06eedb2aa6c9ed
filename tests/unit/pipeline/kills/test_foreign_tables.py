"""Tables that other programs wrote: each job gives the right result, or refuses them by the name of the feature, before
it writes anything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

from headwater.client import Client
from headwater.errors import UnsupportedTableError
from tests.servers import Server
from tests.unit.pipeline.foreign_features import FEATURES, Feature
from tests.unit.pipeline.kills.effects import live, observing
from tests.unit.pipeline.kills.stages import SCENES, Published, Scene

Use: TypeAlias = Literal["read", "append", "change"]

QUICK = ("archive", "publish-stream", "replay", "materialize-merge-scd2-sequence")
USES: dict[str, dict[str, Use]] = {
    "archive": {"": "append", ".streams": "change"},
    "replay": {"": "read", ".streams": "read"},
    "publish-stream": {"": "read"},
    "publish-table": {"": "read"},
}
MATERIALIZED: dict[str, Use] = {"": "change", ".streams": "append", ".quarantine": "append"}
KEPT: dict[str, Use] = {".tombstones": "change"}
USES |= {
    name: MATERIALIZED | (KEPT if name.endswith("sequence") else {})
    for name in SCENES
    if name.startswith("materialize")
}
CASES = [
    pytest.param(name, suffix, use, marks=() if name in QUICK and not suffix else pytest.mark.slow)
    for name, uses in USES.items()
    for suffix, use in uses.items()
]


def is_accepted(feature: Feature, use: Use) -> bool:
    if use == "read":
        return feature.readable
    if use == "change" and feature.removable is not None:
        return feature.removable
    return feature.writable


def accepted(name: str, feature_name: str) -> list[str]:
    """The tables of a job that may have a feature."""
    return [suffix for suffix, use in USES[name].items() if is_accepted(FEATURES[feature_name], use)]


ACCEPTED = [(name, feature_name) for name in USES for feature_name in FEATURES if accepted(name, feature_name)]


def prepared(name: str, directory: Path, server: Server, client: Client) -> Scene:
    """A scene before its second phase. Jobs that only read do not run before it."""
    scene = SCENES[name](directory, server.url, client)
    for phase in range(2):
        scene.begin(phase)
        if phase == 0 and name.startswith(("archive", "materialize")):
            with scene.patched():
                scene.run(phase)
    if isinstance(scene, Published):
        scene.versions = scene.versions[1:2]
    return scene


@pytest.mark.parametrize(("name", "suffix", "use"), CASES)
def test_a_table_that_is_refused(
    name: str, suffix: str, use: Use, tmp_path: Path, server: Server, client: Client
) -> None:
    scene = prepared(name, tmp_path / "tables", server, client)
    shutil.copytree(tmp_path / "tables", tmp_path / "copy")
    for feature_name, feature in FEATURES.items():
        if is_accepted(feature, use):
            continue
        feature.give(Path(f"{scene.table}{suffix}"))
        refusals = []

        def attempt() -> None:
            try:
                scene.run(1)
            except UnsupportedTableError as error:
                refusals.append(str(error))  # noqa: B023

        with observing(), scene.patched():
            life = live(attempt)
        assert refusals, feature_name
        assert feature.name in refusals[0], feature_name
        assert f"{scene.table}{suffix}" in refusals[0], feature_name
        assert life.effects == [], feature_name
        shutil.rmtree(tmp_path / "tables")
        shutil.copytree(tmp_path / "copy", tmp_path / "tables")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "feature_name"), ACCEPTED)
def test_a_table_that_is_accepted(name: str, feature_name: str, tmp_path: Path, server: Server, client: Client) -> None:
    scene = prepared(name, tmp_path / "tables", server, client)
    for suffix in accepted(name, feature_name):
        FEATURES[feature_name].give(Path(f"{scene.table}{suffix}"))
    with scene.patched():
        scene.run(1)
    scene.check()
