"""What `make release` finds wrong with packages."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tools.release import metadata_problems, repository_problems, sdist_problems, wheel_problems

from headwater import __version__

METADATA = f"""Metadata-Version: 2.4
Name: headwater
Version: {__version__}
Summary: Streams.
License-Expression: MIT
Requires-Python: >=3.11
Description-Content-Type: text/markdown

# Headwater
"""
FILES = ("headwater/py.typed", "headwater/spark/log4j2.properties", "pyspark_headwater.py")


def wheel(directory: Path, *names: str, metadata: str = METADATA) -> Path:
    path = directory / "headwater.whl"
    with zipfile.ZipFile(path, "w") as files:
        for name in names:
            files.writestr(name, "")
        files.writestr("headwater-0.dist-info/METADATA", metadata)
    return path


def test_wheels(tmp_path: Path) -> None:
    assert wheel_problems(wheel(tmp_path, *FILES)) == []
    assert wheel_problems(wheel(tmp_path, *FILES[1:], "tests/x.py")) == [
        "headwater.whl has tests, which is not part of the package",
        "headwater.whl lacks headwater/py.typed",
    ]


def test_metadata() -> None:
    assert metadata_problems("p", METADATA) == []
    old = METADATA.replace(f"Version: {__version__}", "Version: 0.0.9").replace("Summary: Streams.\n", "")
    assert metadata_problems("p", old) == [
        "the metadata of p has no Summary",
        f"p is version 0.0.9, not {__version__}",
    ]
    assert metadata_problems("p", METADATA.replace("text/markdown", "text/plain")) == [
        "the metadata of p has no description in Markdown"
    ]


def test_sdists(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text(METADATA)
    path = tmp_path / "headwater.tar.gz"
    with tarfile.open(path, "w:gz") as files:
        for name in ("LICENSE", ".venv/secret", "PKG-INFO"):
            files.add(tmp_path / "PKG-INFO", f"headwater-0/{name}")
    assert sdist_problems(path) == [
        "headwater.tar.gz lacks README.md",
        "headwater.tar.gz has headwater-0/.venv/secret",
    ]


def test_what_is_left_to_do(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    (tmp_path / "pyproject.toml").write_text("[project.urls]\n")
    assert len(repository_problems(tmp_path)) == 2
    (tmp_path / "CHANGELOG.md").write_text(f"## [{__version__}] 2026-12-01\n")
    (tmp_path / "pyproject.toml").write_text("[project.urls]\nChangelog = 'x'\n")
    assert repository_problems(tmp_path) == []
