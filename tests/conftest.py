"""Settings of every suite, which tests are for `make test-release`, and which run first."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.programs import not_run

settings.register_profile("headwater", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("thorough", settings.get_profile("headwater"), max_examples=1000)  # by --hypothesis-profile
settings.register_profile("quick", settings.get_profile("headwater"), max_examples=20)  # make test-fast
settings.load_profile("headwater")

# Tests start hundreds of Python processes. Where the environment forbids bytecode files, each of them would compile the
# package again, which takes longer than most of what they are started for; and each worker would rewrite all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A Java that lives for seconds gains nothing from the optimising compiler, which takes half of its processor time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Processes that the test starts get SIGINT and SIGHUP, although `nohup`, or a shell that runs the tests in the
    background, has the tests ignore them."""
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, hung_up)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was not run for lack of a program: a summary of dots would hide it."""
    skipped = terminalreporter.stats.get("skipped", ())
    lines = not_run(str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple))
    if lines:
        terminalreporter.section("not run", sep="!", yellow=True, bold=True)
        for line in lines:
            terminalreporter.line(line, yellow=True, bold=True)


# What takes longest comes first, so that the short files at the end even out who has how much to do.
FIRST = (
    "tests/spark/",
    "tests/conformance/",
    "tests/fault/",
    "tests/docs/",
    "tests/browser/",
    "tests/contract/test_http.py",
    "tests/unit/store/embedded/test_directory.py",
    "tests/contract/native/test_hardening.py",
    "tests/unit/spark/test_publishing.py",
    "tests/interop/",
    "tests/cli/",
    "tests/typing/",
)


# Whole files that take too long for `make test`; single tests have the marker `slow`. They start browsers, Java or many
# servers, or run many histories. On Spark, `make test` runs the sources, the sinks and how a job ends.
SLOW = (
    "tests/browser/",
    "tests/docs/test_site.py",
    "tests/fault/test_chains.py",
    "tests/fault/test_disk_failures.py",
    "tests/fault/test_sabotage.py",
    "tests/fault/test_sabotaged_subscriptions.py",
    "tests/fault/test_views.py",
    "tests/spark/test_archive.py",
    "tests/spark/test_folding.py",
    "tests/spark/test_interop.py",
    "tests/spark/test_java.py",
    "tests/spark/test_materialize.py",
    "tests/spark/test_publish.py",
    "tests/spark/test_tables.py",
    "tests/spark/test_violence.py",
)


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """What was collected stays until the end. The garbage collector need not look at a million objects each time."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries in C report what is left at the end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file run in one process, and so do those that share a Spark session."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "the Spark session" if file in SPARK_SESSION else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


_SHARING = ("archive", "commands", "folding", "home", "interop", "publish", "running", "sinks", "sources", "tables")
SPARK_SESSION = {f"tests/spark/test_{name}.py" for name in _SHARING}
