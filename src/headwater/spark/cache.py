"""A directory for small files that sessions of Spark create once and use again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_directory(name: str) -> Path:
    """A directory in the user's cache, or a temporary one if the cache cannot be written to."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
        directory = caches / "headwater" / name
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return _temporary(name)
    return directory if os.access(directory, os.W_OK | os.X_OK) else _temporary(name)


def _temporary(name: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"headwater-{name}-"))
