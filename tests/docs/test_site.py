"""`make docs` builds the site without a warning, and its pages fetch nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.waiting import PROGRAM_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=\"?([^\"\s>]+)|<link\b([^>]*)>")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    (command,) = re.findall(r"^\t(.*mkdocs build.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert command == "NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet"
    directory = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    arguments = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)]
    built = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return directory


def test_nothing_is_fetched_when_a_page_is_read(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        for source, link in FETCHED.findall(page.read_text()):
            fetches = source or ("" if 'rel="canonical"' in link else link)
            assert not re.search(r"(^|\")(https?:)?//", fetches), f"{page.name}: {source or link}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text()), sheet.name


def test_the_site_shows_docstrings_and_diagrams(site: Path) -> None:
    assert 'id="headwater.client.Client"' in (site / "api" / "client.html").read_text()
    assert "system.svg" in (site / "index.html").read_text()
    assert (site / "diagrams" / "system.svg").exists()


def test_warnings_are_errors() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.SafeLoader)
    assert settings["strict"] is True
    assert {*settings["validation"]["links"].values(), *settings["validation"]["nav"].values()} == {"warn"}
