"""What processes of Spark write to standard error, and what of it is passed on."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from headwater.cli.pipeline.java_output import JavaOutput
from tests.waiting import wait_until

NOISE = "WARNING: Using incubator modules: jdk.incubator.vector"
CHILD = f"""
import sys
for line in ({NOISE!r}, "NOTE: Picked up JDK_JAVA_OPTIONS", "something to know"):
    print(line, file=sys.stderr, flush=True)
for line in sys.stdin:
    print(line, file=sys.stderr, end="", flush=True)
"""


def test_messages_are_passed_on_until_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    output = JavaOutput()
    with output.collecting():
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, text=True)
    assert child.stdin is not None
    shown = ""

    def has(text: str) -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return text in shown

    wait_until(lambda: has("something to know"))
    print("out of memory\x1b[2J", file=child.stdin, flush=True)
    wait_until(lambda: has("out of memory"))
    output.end()
    child.communicate("Traceback (most recent call last):\n")
    output.reason()  # waits until everything is read
    shown += capfd.readouterr().err
    assert shown == "something to know\nout of memory\\u001b[2J\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            [NOISE, "Invalid maximum heap size: -Xmxabc", "Error: Could not create the Java Virtual Machine."],
            "Invalid m",
        ),
        (
            ['Exception in thread "main" org.a.SparkException: no memory', "\tat org.a"],
            "org.a.SparkException: no memory",
        ),
        (["java.lang.A: b", "Caused by: java.lang.NumberFormatException: abc"], "java.lang.NumberFormatException: abc"),
        ([NOISE], None),
    ],
)
def test_the_reason_why_nothing_started(lines: list[str], reason: str | None) -> None:
    output = JavaOutput()
    program = f"import sys; sys.stderr.write({chr(10).join(lines)!r})"
    with contextlib.suppress(RuntimeError), output.collecting():
        subprocess.run([sys.executable, "-c", program], check=True)
        raise RuntimeError
    told = output.reason()
    assert told is None if reason is None else (told or "").startswith(reason)
