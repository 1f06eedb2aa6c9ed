"""Every public name has a docstring, as the site shows it: what packages export, and the public methods of classes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import griffe
import pytest

from headwater import errors

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES = (
    "headwater.client",
    "headwater.state",
    "headwater.testing",
    "headwater.sql",
    "headwater.spark",
    "headwater.pipeline",
)


@pytest.fixture(scope="module")
def loader() -> griffe.GriffeLoader:
    loader = griffe.GriffeLoader(search_paths=[SOURCE])
    loader.load("headwater", submodules=True)
    loader.resolve_aliases(implicit=True)
    return loader


def _target(loader: griffe.GriffeLoader, package: str, name: str) -> griffe.Object:
    """What a package exports under a name. A function may be called like the module that it is in."""
    member = loader.modules_collection[f"{package}.{name}"]
    if isinstance(member, griffe.Module):
        (member,) = [
            module[name]
            for module in (member, *member.modules.values())
            if name in module.members and module[name].is_function and not module[name].is_alias
        ]
    return member.final_target if isinstance(member, griffe.Alias) else member


def _undocumented(thing: griffe.Object) -> list[str]:
    missing = [] if thing.docstring else [thing.path]
    if isinstance(thing, griffe.Class) and not thing.path.startswith("headwater.spark."):  # Spark's own interfaces
        for name, member in thing.members.items():
            is_property = isinstance(member, griffe.Attribute) and "property" in member.labels
            if not name.startswith("_") and (member.is_function or is_property) and not member.docstring:
                missing.append(member.path)
    return missing


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_exports(package: str, loader: griffe.GriffeLoader) -> None:
    names = loader.modules_collection[package].exports
    assert names
    targets = [_target(loader, package, str(name)) for name in names]
    assert [path for target in targets for path in _undocumented(target)] == []


def test_the_server(loader: griffe.GriffeLoader) -> None:
    module = loader.modules_collection["headwater.server.asgi"]
    assert _undocumented(module["App"]) + _undocumented(module["app"]) == []
    assert _undocumented(loader.modules_collection["headwater.store.embedded.opening.open_store"]) == []


def test_errors() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert [kind.__name__ for kind in kinds if not vars(kind)["__doc__"]] == []
    assert errors.StaleEpochError.__doc__ == f"{errors.StaleEpochError.title}. {errors.StaleEpochError.advice}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_site_shows_them(package: str, loader: griffe.GriffeLoader) -> None:
    page = (SOURCE.parent / "docs" / "api" / f"{package.split('.')[1]}.md").read_text()
    shown = re.findall(r"^        - (\w+)$", page, re.MULTILINE) or re.findall(r"^::: .*\.(\w+)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(str(name) for name in loader.modules_collection[package].exports or ())
