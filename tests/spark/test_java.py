"""The Java of the machine, and the one that the extra `spark` installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.servers import ROOT

from headwater.spark.java import java_home, java_version
from tests.waiting import PROGRAM_LIMIT_S


def test_an_installed_java_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version, usable in (("17.0.15", True), ("21", True), ("1.8.0_392", False), ("11.0.2", False)):
        java = tmp_path / version / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / version))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert (java_home() is None) is usable
        monkeypatch.delenv("JAVA_HOME")
        monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
        assert (java_home() is None) is usable


def test_without_a_java_the_packaged_one_is_wrapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java_home()
    assert home is not None
    java = Path(home) / "bin" / "java"
    assert java_version(str(java)) >= 17
    ran = subprocess.run(
        [str(java), "--add-modules=jdk.incubator.vector", "-Dsaid=a b", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "said = a b" in ran.stderr + ran.stdout


@pytest.mark.slow
def test_a_session_with_the_packaged_java(tmp_path: Path) -> None:
    """On a machine whose PATH has all the usual tools but no Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    program = (
        "import headwater.spark\n"
        "spark = headwater.spark.session(master='local[1]')\n"
        "assert spark.range(10).count() == 10\n"
        "print(spark.sql(\"SELECT java_method('java.lang.System', 'getProperty', 'java.version')\").first()[0])\n"
        "spark.stop()\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**env, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("25")
