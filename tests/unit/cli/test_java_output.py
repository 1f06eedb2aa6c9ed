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


def test_tracebacks_are_passed_on_whole_except_of_workers_whose_connection_spark_has_closed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    frame = '  File "/lib/pyspark/daemon.py", line 264, in manager\n    code = worker(sock, authenticated)\n'
    head = "Traceback (most recent call last):\n"
    closed = f"{head}{frame}BrokenPipeError: [Errno 32] Broken pipe\n"
    kept = f"{head}{frame}ValueError: a fault\n" + f'{head}  File "/app/mine.py", line 1\nBrokenPipeError: mine\n'
    output = JavaOutput()
    with output.collecting():
        subprocess.run([sys.executable, "-c", CHILD], input=f"{closed}{kept}{closed}last\n", text=True, check=True)
    output.reason()  # waits until everything is read
    wait_until(output._has_ended.is_set)
    assert capfd.readouterr().err == f"something to know\n{kept}last\n"


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
    text = output.reason()
    assert text is None if reason is None else (text or "").startswith(reason)
