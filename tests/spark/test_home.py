"""The Spark home of local sessions, from which workers import the compiled PySpark."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.spark import home
from headwater.spark.cache import cache_directory


@pytest.fixture(autouse=True)
def environment(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Needs the session, which must not start in a temporary cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_HOME", raising=False)


def test_a_local_session_starts_in_a_home_without_the_zipped_pyspark() -> None:
    for _ in range(2):  # the second session finds the links of the first
        with home.compiled_home("local[2]", {}):
            directory = Path(os.environ["SPARK_HOME"])
            assert (directory / "bin" / "spark-submit").exists()
            assert (directory / "jars").is_dir()
            assert not (directory / "python").exists()
        assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("master", "config", "variable"),
    [
        ("yarn", {}, ("", "")),
        ("spark://host:7077", {}, ("", "")),
        ("local", {"spark.pyspark.python": "/usr/bin/python3"}, ("", "")),
        ("local", {}, ("PYSPARK_PYTHON", "/usr/bin/python3")),
        ("local", {}, ("SPARK_HOME", "/opt/spark")),
    ],
)
def test_other_sessions_keep_their_home(
    monkeypatch: pytest.MonkeyPatch, master: str, config: dict[str, str], variable: tuple[str, str]
) -> None:
    name, value = variable
    if name:
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with home.compiled_home(master, config):
        assert dict(os.environ) == before


def test_a_pyspark_outside_the_packages_of_this_python_keeps_its_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(home, "_INSTALLED", tmp_path / "pyspark")
    with home.compiled_home("local", {}):
        assert "SPARK_HOME" not in os.environ


def test_a_home_that_cannot_be_created_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with home.compiled_home("local", {}):
        assert "SPARK_HOME" not in os.environ


def test_the_environment_is_restored_after_a_failure() -> None:
    def fail() -> None:
        with home.compiled_home("local", {}):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert "SPARK_HOME" not in os.environ


def test_a_cache_that_cannot_be_created_is_replaced_by_a_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = cache_directory("spark")
    assert directory.parent == tmp_path
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_relative_cache_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_directory("spark") == tmp_path / "here" / "headwater" / "spark"


def test_workers_import_the_compiled_pyspark(spark: SparkSession) -> None:
    def paths(_: object) -> list[str]:
        import pyspark

        return [str(pyspark.__spec__.cached), *sys.path]

    cached, *searched = spark.sparkContext.parallelize([0], 1).flatMap(paths).collect()
    assert cached.endswith(".pyc")
    assert not [path for path in searched if path.endswith("pyspark.zip") and os.path.exists(path)]
