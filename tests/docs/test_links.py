"""Relative links of all pages lead to files, and their anchors to headings."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
IMAGE = re.compile(r"(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#+ (.+?)\s*#*$", re.MULTILINE)


def targets(page: Path) -> list[str]:
    text = FENCED.sub("", page.read_text())
    links = LINK.findall(re.sub(r"(?<!\[)`[^`\n]+`", "", text)) + LINK.findall(text) + IMAGE.findall(text)
    return [target for target in dict.fromkeys(links) if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as the site makes them."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCED.sub("", page.read_text())):
        plain = LINK.sub(lambda link: link[0][1 : link[0].index("]")], heading).replace("`", "")
        slug, count = slugify(plain, "-"), 1
        while slug in names:
            slug, count = f"{slugify(plain, '-')}_{count}", count + 1
        names.add(slug)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links(page: Path) -> None:
    for target in targets(page):
        name, _, anchor = target.partition("#")
        path = (page.parent / unquote(name)).resolve() if name else page
        assert path.exists(), target
        assert path.is_relative_to(ROOT), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), target


def test_the_checker_finds_links() -> None:
    assert "reference/index.md" in targets(ROOT / "docs" / "index.md")
    assert "extensions" in anchors(ROOT / "docs" / "protocol.md")
