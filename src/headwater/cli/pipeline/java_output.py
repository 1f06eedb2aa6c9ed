"""What Spark's Java process and its workers write to standard error while a command runs.

Their messages are passed on, except those that nobody can act on: warnings of the Java launcher, and tracebacks of
workers that end because the session ends, or because Spark has closed their connection: it does that when a task needs
no more of them, and reports the failure of a task itself. If Spark does not start, one line of its messages is told as
the reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator

from headwater.cli.output import shown

_NOISE = re.compile(r"WARNING: |(NOTE: )?Picked up |Setting default log level|To adjust logging level|:: loading ")
_PREFIX = re.compile(r'(Exception in thread "[^"]*" |Caused by: )')
_EMPTY = re.compile(r"Error: (A fatal exception has occurred|Could not create the Java Virtual Machine)")
_TRACEBACK = "Traceback (most recent call last):"
_WORKER = re.compile(r'File ".*[/\\\\]pyspark[/\\\\](daemon|worker)\.py"')
_CLOSED = re.compile(r"(BrokenPipeError|ConnectionResetError)\b")
_REASON = re.compile(
    r"Exception in thread \S+ |Caused by: |Error: |Error occurred|ERROR |^Invalid |^Unrecognized "
    r"|^[\w.$]+(?:Error|Exception): "
)


class JavaOutput:
    """Reads the messages in a thread, from a pipe that the processes inherit as their standard error."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._is_starting = True
        self._is_ending = False
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._traceback: list[str] = []  # of a process, until its last line is known

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Hold messages back while Spark starts. They are passed on when it has started."""
        sys.stderr.flush()
        reader, writer = os.pipe()
        kept = os.dup(2)
        os.dup2(writer, 2)
        os.close(writer)
        threading.Thread(target=self._read, args=(reader, kept), name="headwater-java-output", daemon=True).start()
        with _own_messages_to(kept):
            try:
                yield
            finally:
                os.dup2(kept, 2)
        with self._lock:  # after a failure, what is still to come is collected for `reason`
            self._is_starting = False
            for line in self._lines:
                self._pass_on(line, kept)

    def reason(self) -> str | None:
        """The line that says why Spark did not start, if its process wrote one."""
        self._has_ended.wait(1)  # the process has written everything when it has ended
        with self._lock:
            lines = [line.strip() for line in self._lines if not (_NOISE.match(line) or _EMPTY.match(line))]
        reasons = [line for line in lines if _REASON.search(line)]
        return _PREFIX.sub("", reasons[-1]) if reasons else None

    def end(self) -> None:
        """Drop messages from now on, because the processes are about to end."""
        self._is_ending = True

    def _read(self, reader: int, kept: int) -> None:
        with open(reader, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with self._lock:
                    if self._is_starting:
                        self._lines.append(line)
                    else:
                        self._pass_on(line, kept)
        with self._lock:
            self._write(self._traceback, kept)  # one whose process ended within it
        self._has_ended.set()

    def _pass_on(self, line: str, to: int) -> None:
        """Pass on a line; a traceback when its last line, which is not indented, has arrived."""
        if self._traceback or line.startswith(_TRACEBACK):
            self._traceback.append(line)
            if line.startswith((" ", _TRACEBACK)):
                return
            lines, self._traceback = self._traceback, []
            if _CLOSED.match(line) and any(map(_WORKER.search, lines)):
                return
        else:
            lines = [line]
        self._write(lines, to)

    def _write(self, lines: list[str], to: int) -> None:
        for line in lines:
            if not (self._is_ending or _NOISE.match(line)):
                with contextlib.suppress(OSError):
                    os.write(to, f"{shown(line.rstrip(), keep=chr(9))}\n".encode())


@contextlib.contextmanager
def _own_messages_to(kept: int) -> Iterator[None]:
    """Let this process write its messages to the real standard error."""
    try:
        is_real = sys.stderr.fileno() == 2
    except (OSError, ValueError):  # replaced, as in a test
        is_real = False
    if not is_real:
        yield
        return
    with open(kept, "w", closefd=False, buffering=1) as real, contextlib.redirect_stderr(real):
        yield
