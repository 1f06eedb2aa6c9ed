"""The Spark that a session uses: what can be checked before it starts, and a home without zipped modules.

A Spark home without the zipped PySpark lets local sessions start faster. Spark puts `python/lib/pyspark.zip` first in
the module path of its Python workers. The modules in this file are not compiled, so every worker compiles PySpark when
it starts: 1 s of processor time. A query uses up to six workers. In a home without this file, workers import the
installed and compiled PySpark.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

from headwater.errors import OptionError
from headwater.spark.cache import cache_directory

_INSTALLED = Path(pyspark.__file__).parent
_ZIPPED = "python"
_PYTHON_OPTIONS = ("spark.pyspark.python", "spark.pyspark.driver.python")


_MASTERS = re.compile(
    r"local(-cluster)?|local\[(\*|[1-9]\d*)(, *[1-9]\d*)?\]|local-cluster\[\d+, *\d+, *\d+\]"
    r"|spark://[^\s/,]+:\d+(,[^\s/,]+:\d+)*|yarn|k8s://\S+"
)


def check_master(master: str) -> None:
    """Refuse a master that cannot be one. A Spark Connect server cannot run the driver's part of the formats."""
    if master.startswith("sc://"):
        message = f"{master} is a Spark Connect server, whose client cannot run jobs and register formats"
        raise OptionError(f"{message}; use the master of the cluster, such as spark://HOST:PORT or yarn")
    if not _MASTERS.fullmatch(master):
        known = "local[*], local[2], spark://HOST:7077, yarn or k8s://HOST:PORT"
        raise OptionError(f"master must be {known}, got {master!r}")


def check_environment(master: str) -> None:
    """Refuse environment variables with which Spark does not start, or starts something else."""
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        if os.environ.get(name):
            raise OptionError(f"{name} is set, which starts a client of Spark Connect; unset it")
    home = os.environ.get("SPARK_HOME")
    if home is not None:
        _check_home(Path(home))
    python = os.environ.get("PYSPARK_PYTHON")
    if python is not None and master.startswith("local") and shutil.which(python) is None:
        raise OptionError(f"PYSPARK_PYTHON is {python!r}, which is not a program here; unset it or correct it")


def _check_home(home: Path) -> None:
    if not (home / "bin" / "spark-submit").is_file():
        raise OptionError(f"SPARK_HOME is {str(home)!r}, which has no bin/spark-submit; unset it or correct it")
    versions = {match[1] for jar in home.glob("jars/spark-core_*.jar") if (match := _CORE.fullmatch(jar.name))}
    if versions and pyspark.__version__ not in versions:
        message = f"SPARK_HOME is {str(home)!r}, which is Spark {', '.join(sorted(versions))}"
        raise OptionError(
            f"{message}, but PySpark is {pyspark.__version__}; unset it, or install that version of PySpark"
        )


_CORE = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


_FILES = "spark.submit.pyFiles"


@contextlib.contextmanager
def python_files(config: Mapping[str, str]) -> Iterator[None]:
    """Let the worker that plans a streaming source import the Python files of a session: Spark sends them to executors
    only, and this worker runs beside the driver. OptionError for a file that PySpark would leave out."""
    files = [name.strip() for name in config.get(_FILES, "").split(",") if name.strip()]
    for name in files:
        if not name.endswith((".zip", ".egg", ".jar", ".py")):
            raise OptionError(f"{_FILES} has {name}, which PySpark leaves out by its ending; copy it to a file .zip")
        if ":/" not in name and not Path(name).is_file():
            raise OptionError(f"{_FILES} has {name}, which does not exist")
    before = os.environ.get("PYTHONPATH")
    directories = [
        os.path.abspath(name if name[-3:] != ".py" else Path(name).parent) for name in files if ":/" not in name
    ]
    if directories:
        os.environ["PYTHONPATH"] = os.pathsep.join([*directories, *([before] if before else [])])
    try:
        yield
    finally:
        if directories and before is None:
            os.environ.pop("PYTHONPATH", None)
        elif directories and before is not None:
            os.environ["PYTHONPATH"] = before


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
