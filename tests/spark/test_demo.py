"""`headwater demo`, as `make run` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

MOVING = re.compile(r" +[0-9.]+ s  shop ([0-9,]+) ")


@pytest.mark.slow
def test_the_demo_shows_the_shop_while_spark_starts_and_checks_its_results(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "demo", "--seconds", "3", "--rate", "300", "--port", "0"]
    with subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        lines = []
        for line in demo.stdout:
            lines.append(line.rstrip())
        error = demo.stderr.read()
    output = "\n".join([*lines, error])
    assert demo.returncode == 0, output
    moving = [line for line in lines if MOVING.match(line)]
    assert moving, output
    assert "Spark starting" in moving[0]
    assert "Traceback" not in error, error
    assert len([line for line in lines if line.endswith("as expected")]) == 4, output
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert DeltaTable(str(tmp_path / "lake" / "shop")).to_pyarrow_table().num_rows > 50
