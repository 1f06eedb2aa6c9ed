"""A Spark home without the zipped PySpark, so that local sessions start faster.

Spark puts `python/lib/pyspark.zip` first in the module path of its Python workers. The modules in this file are not
compiled, so every worker compiles PySpark when it starts: 1 s of processor time. A query uses up to six workers. In a
home without this file, workers import the installed and compiled PySpark.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

from headwater.spark.cache import cache_directory

_INSTALLED = Path(pyspark.__file__).parent
_ZIPPED = "python"
_PYTHON_OPTIONS = ("spark.pyspark.python", "spark.pyspark.driver.python")


@contextlib.contextmanager
def compiled_home(master: str, config: Mapping[str, str]) -> Iterator[None]:
    """Set SPARK_HOME while a session starts, if it is local and its workers find the installed PySpark."""
    home = _linked(_INSTALLED) if _is_found_by_workers(master, config) else None
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ.pop("SPARK_HOME", None)


def _is_found_by_workers(master: str, config: Mapping[str, str]) -> bool:
    is_local = master.startswith("local") and "SPARK_HOME" not in os.environ and os.name == "posix"
    is_same_python = os.environ.get("PYSPARK_PYTHON") == sys.executable and not config.keys() & set(_PYTHON_OPTIONS)
    return is_local and is_same_python and str(_INSTALLED.parent) == sysconfig.get_path("purelib")


def _linked(installed: Path) -> Path | None:
    """A directory with links to everything in a Spark home except the zipped PySpark; None if it cannot be created."""
    home = cache_directory("spark") / hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]
    try:
        home.mkdir(exist_ok=True)
        for entry in installed.iterdir():
            if entry.name != _ZIPPED:
                with contextlib.suppress(FileExistsError):  # an earlier session created it
                    (home / entry.name).symlink_to(entry)
    except OSError:  # for example, a file system without links
        return None
    return home
