"""Prefixes of paths on the command line: `a` names `a` and everything below it, not `ab`."""

from __future__ import annotations


def is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
