"""What the files of the console must not have, and that the page names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headwater.console
from headwater.console import load_files

DIRECTORY = Path(headwater.console.__file__).parent
SCRIPTS = sorted(path.name for path in DIRECTORY.glob("*.js"))
# Ways to make markup or a script from text, and styles that the policy would refuse.
FORBIDDEN = (
    r"innerHTML",
    r"outerHTML",
    r"insertAdjacentHTML",
    r"document\.write",
    r"createContextualFragment",
    r"DOMParser",
    r"srcdoc",
    r"\beval\(",
    r"new Function",
    r"import\(",
    r"""setAttribute\(["']style""",
    r"""\bstyle:""",
    r"javascript:",
    r"document\.cookie",
    r"postMessage|onmessage",
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_makes_no_markup_from_text(name: str) -> None:
    text = (DIRECTORY / name).read_text()
    for pattern in FORBIDDEN:
        assert not re.search(pattern, text), pattern


@pytest.mark.parametrize("name", [*SCRIPTS, "index.html", "console.css"])
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    text = (DIRECTORY / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"""https?://|@import|url\([^)]*:""", text)


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    text = (DIRECTORY / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text) == [""]


def test_the_page_loads_every_script_at_once() -> None:
    text = (DIRECTORY / "index.html").read_text()
    named = re.findall(r'"console/VERSION/([\w.]+)"', text)
    assert sorted(named) == sorted([*SCRIPTS, "console.css"])
    assert sorted(load_files().files) == sorted(named)


@pytest.mark.parametrize("name", SCRIPTS)
def test_imports_are_files_and_all_are_used(name: str) -> None:
    text = (DIRECTORY / name).read_text()
    for names, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)";', text, re.MULTILINE):
        exported = (DIRECTORY / source).read_text()
        for one in names.split(","):
            imported, _, local = one.strip().partition(" as ")
            pattern = rf"^export (?:async )?(?:function\*?|class|const) {imported}\b"
            assert re.search(pattern, exported, re.MULTILINE), f"{source} has no {imported}"
            used = re.findall(rf"\b{local or imported}\b", text)
            assert len(used) > 1, f"{imported} is imported and not used"


def test_the_page_of_a_response() -> None:
    files = load_files()
    page = files.page_for("abc", "required").decode()
    assert 'data-token="required"' in page
    assert page.count('nonce="abc"') == len(SCRIPTS)
    assert not re.search(r"NONCE|VERSION|TOKEN", page)
