"""The official conformance suite against every edge that users run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bench.servers import NODE_DIR

from tests.edges import DURABLE, NATIVE, TOGETHER, UVICORN, edge
from tests.waiting import PROGRAM_LIMIT_S

EXPECTED = 338  # all of suite 0.3.6


EDGES = (DURABLE, *(pytest.param(name, marks=pytest.mark.slow) for name in (NATIVE, TOGETHER, UVICORN)))


def run_suite(name: str, report: Path) -> Any:
    npx = shutil.which("npx")
    assert npx is not None, "Node is needed: run this through `make test`"
    with edge(name, long_poll_s=2) as server:
        subprocess.run(
            [npx, "vitest", "run", "--reporter=json", f"--outputFile={report}"],
            cwd=NODE_DIR,
            env={
                **os.environ,
                "HEADWATER_URL": f"http://{server.host}:{server.port}",
                "HEADWATER_LONG_POLL_MS": "2000",
            },
            capture_output=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )
    return json.loads(report.read_text())


@pytest.fixture(scope="module")
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """The suite over the selected edges at the same time: it mostly waits for what expires or does not come."""
    selected = [item for item in request.session.items if item.path == request.path]
    names = [str(item.callspec.params["name"]) for item in selected if isinstance(item, pytest.Function)]
    directory = tmp_path_factory.mktemp("reports")
    with ThreadPoolExecutor(2) as pool:  # one for each core
        yield {name: pool.submit(run_suite, name, directory / f"{turn}.json") for turn, name in enumerate(names)}


@pytest.mark.parametrize("name", EDGES)
def test_the_official_suite_passes(name: str, running: dict[str, Future[Any]]) -> None:
    results = [test for file in running[name].result()["testResults"] for test in file["assertionResults"]]
    failed = [test["fullName"] for test in results if test["status"] == "failed"]
    skipped = {test["ancestorTitles"][0] for test in results if test["status"] not in ("passed", "failed")}
    passed = [test for test in results if test["status"] == "passed"]
    assert failed == []
    assert skipped == set()
    assert len(passed) >= EXPECTED
