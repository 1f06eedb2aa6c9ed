"""`make release`: build what is uploaded for a release, check it, and print the command that uploads it.

python -m tools.release [--no-spark]

Nothing is uploaded. The files in `dist` are those that the smoke test installed.
"""

from __future__ import annotations

import argparse
import email.parser
import importlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from headwater import __version__
from tools.smoke import DIST, ROOT, build, try_package

_WANTED = ("Metadata-Version", "Name", "Version", "Summary", "Requires-Python", "License-Expression")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-spark", action="store_true", help="leave out the smoke test of [spark], which is 500 MB")
    arguments = parser.parse_args()
    wheel, sdist = build()
    problems = [*wheel_problems(wheel), *sdist_problems(sdist)]
    for problem in problems:
        print(f"release: {problem}", file=sys.stderr)
    if problems:
        raise SystemExit(1)
    if not has_passed_twine(wheel, sdist):
        raise SystemExit(1)
    for package, extra in ((wheel, ""), (sdist, ""), *([] if arguments.no_spark else [(wheel, "spark")])):
        try_package(package, extra)
    print(f"\nheadwater {__version__} is in {DIST.relative_to(ROOT)}. Nothing was uploaded. To upload it:\n")
    print(f"  python -m twine upload {wheel.relative_to(ROOT)} {sdist.relative_to(ROOT)}\n")
    if left := repository_problems():
        print("Before that:\n")
        for problem in left:
            print(f"- {problem}")
        raise SystemExit(1)


def wheel_problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel, in words."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode()
    others = sorted({name.split("/")[0] for name in names} - {"headwater"} - {metadata.split("/")[0]})
    strange = [name for name in others if not re.fullmatch(r"pyspark_headwater(_\w+)?\.py", name)]
    problems = [f"{wheel.name} has {name}, which is not part of the package" for name in strange]
    needed = ("headwater/py.typed", "headwater/spark/log4j2.properties")
    problems += [f"{wheel.name} lacks {name}" for name in needed if name not in names]
    return problems + metadata_problems(wheel.name, text)


def sdist_problems(sdist: Path) -> list[str]:
    with tarfile.open(sdist) as files:
        names = files.getnames()
        top = names[0].split("/")[0]
        member = files.extractfile(f"{top}/PKG-INFO")
        text = member.read().decode() if member is not None else ""
    problems = [f"{sdist.name} lacks {name}" for name in ("LICENSE", "README.md") if f"{top}/{name}" not in names]
    private = [name for name in names if re.search(r"/(\.venv|node_modules|\.git)/", name)]
    return problems + [f"{sdist.name} has {name}" for name in private[:3]] + metadata_problems(sdist.name, text)


def metadata_problems(name: str, text: str) -> list[str]:
    """What the index would refuse, or users would miss."""
    metadata = email.parser.Parser().parsestr(text)
    problems = [f"the metadata of {name} has no {field}" for field in _WANTED if not metadata.get(field)]
    if metadata.get("Version") != __version__:
        problems.append(f"{name} is version {metadata.get('Version')}, not {__version__}")
    if metadata.get("Description-Content-Type") != "text/markdown" or not metadata.get_payload():
        problems.append(f"the metadata of {name} has no description in Markdown")
    return problems


def repository_problems(root: Path = ROOT) -> list[str]:
    """What has to be done before a release, by the changelog and the addresses of the project."""
    problems = []
    if f"## [{__version__}]" not in (root / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section for {__version__}: rename Unreleased to the version and its date")
    if "Changelog" not in (root / "pyproject.toml").read_text():
        problems.append("project.urls in pyproject.toml lacks the addresses of repository, documentation and changelog")
    return problems


def has_passed_twine(*packages: Path) -> bool:
    """Run twine's check of the metadata, as the index does it. Twine is only needed for releases."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)]
    try:
        importlib.import_module("twine")
    except ImportError:
        print("release: twine is missing; install it with: python -m pip install twine", file=sys.stderr)
        return False
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    main()
