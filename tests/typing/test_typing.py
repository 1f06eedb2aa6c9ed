"""The public API under both type checkers, strictly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.servers import NODE_DIR

from tests.waiting import PROGRAM_LIMIT_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECKED = sorted(path for path in HERE.glob("*.py") if path.name.endswith("_api.py"))


@pytest.mark.slow
def test_mypy_agrees() -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--warn-unused-ignores",
        "--no-error-summary",
        *map(str, CHECKED),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.slow
def test_pyright_agrees() -> None:
    program = NODE_DIR / "node_modules" / "pyright" / "index.js"
    command = ["node", str(program), "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)
    report = json.loads(ran.stdout)
    assert [(item["file"], item["range"]["start"], item["message"]) for item in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == len(CHECKED)
