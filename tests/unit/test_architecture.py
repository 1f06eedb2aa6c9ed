"""ARCHITECTURE.md names files, classes and functions that exist, where it says that they are."""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "headwater"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PLANNED = "## Where the next features belong"

PATH = re.compile(r"`([\w./-]+/|[\w./-]+\.(?:py|js|md))(?::(\w+))?`")
METHOD = re.compile(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`")
DEFINED_IN = re.compile(r"`([A-Za-z_]\w*)(?:\.(\w+))?`\s+\(`([\w/]+\.py)`\)")


def present() -> str:
    """The text without the features to come, whose files do not exist yet."""
    before, _, after = TEXT.partition(PLANNED)
    return before + after.partition("\n## ")[2]


@cache
def modules() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def named(path: str) -> list[str]:
    """The modules whose path ends as the text says."""
    return [module for module in modules() if f"/{module}".endswith(f"/{path}")]


def names_of(tree: ast.AST) -> set[str]:
    """What is defined in a module or a class: functions, classes, variables, and attributes that methods set."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.Attribute(ctx=ast.Store()):
                names.add(node.attr)
    return names


def classes(name: str) -> list[ast.ClassDef]:
    """The classes of modules with a name."""
    nodes = (node for tree in modules().values() for node in tree.body)
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]


def files() -> list[str]:
    paths: list[str] = []
    for top in ("src/headwater", "bench", "tests", "tools"):
        for directory, directories, names in os.walk(ROOT / top):
            directories[:] = {*directories} - {"__pycache__", "node_modules"}
            paths += [f"{directory}/{name}" for name in (*directories, *names)]
    return paths


def test_files_exist() -> None:
    paths, there = [path.rstrip("/") for path, _ in PATH.findall(present())], files()
    assert len(paths) > 100
    missing = [
        path for path in paths if not (ROOT / path).exists() and not any(one.endswith(f"/{path}") for one in there)
    ]
    assert missing == ["/console/VERSION"]  # of a URL


def test_functions_are_in_their_files() -> None:
    functions = [(path, function) for path, function in PATH.findall(present()) if function]
    assert len(functions) >= 3
    for path, function in functions:
        assert any(function in names_of(modules()[module]) for module in named(path)), f"{path}:{function}"


def test_methods_are_in_their_classes() -> None:
    methods = METHOD.findall(present())
    assert len(methods) > 30
    for name, method in methods:
        assert any(method in names_of(node) for node in classes(name)), f"{name}.{method}"


def test_classes_are_in_their_files() -> None:
    places = DEFINED_IN.findall(present())
    assert len(places) > 15
    for name, attribute, path in places:
        trees = [modules()[module] for module in named(path)]
        assert any({name, attribute or name} <= names_of(tree) for tree in trees), f"{name}.{attribute} in {path}"
