"""The status of a mirror: a line that is updated in place on a terminal, otherwise plain lines or JSON."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from headwater import limits
from headwater.cli.connecting import retrying
from headwater.cli.output import print_json, say, shown

if TYPE_CHECKING:
    from headwater.client import Mirrored, Report

CONNECTING, RETRYING, CLOSED = "connecting", "retrying", "closed"
CATCHING_UP, UP_TO_DATE, FOLLOWING = "catching up", "up to date", "following"


class MirrorStatus:
    """Without a terminal, a line is printed when the state changes, and every few seconds while rows arrive."""

    def __init__(self, table: str, *, as_json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._as_json = as_json
        self._clock = clock
        self._state = CONNECTING
        self.last_seqno: int | None = None  # None: not known yet
        self._lag_rows: int | None = None
        self._rows = 0  # since the start
        self._recent: deque[tuple[float, int]] = deque()  # when rows arrived, and how many
        self._started_s = clock()
        self._printed: tuple[float, str, int] = (self._started_s, CONNECTING, 0)  # when, and what it said
        self._console = Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() and not as_json else None
        self._live = None if self._console is None else self._console.status(self)

    def __enter__(self) -> MirrorStatus:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            say(self.text())

    def __rich__(self) -> Text:
        """The line for the terminal, which is rendered several times per second."""
        return Text(shown(self.text()))

    def stored(self, progress: Mirrored) -> None:
        now_s = self._clock()
        self.last_seqno, self._lag_rows = progress.last_seqno, progress.lag_rows
        self._rows += progress.rows
        self._recent.append((now_s, progress.rows))
        if self._lag_rows is None:
            self._enter(FOLLOWING)
        else:
            self._enter(CATCHING_UP if self._lag_rows else UP_TO_DATE)

    def retrying(self, report: Report) -> None:
        """Report a failure of either server that is retried."""
        self._enter(RETRYING)
        said = retrying(report)
        if self._console is not None:
            self._console.print(Text(shown(said)))  # above the line
        else:
            say(said, err=True)

    def closed(self) -> None:
        self._enter(CLOSED)

    def _enter(self, state: str) -> None:
        self._state = state
        printed_s, said, rows = self._printed
        is_due = rows != self._rows and self._clock() - printed_s >= limits.CLI_STATUS_S
        if self._console is None and (is_due or said != state):
            self._printed = self._clock(), state, self._rows
            if self._as_json:
                print_json(self._described())
            else:
                say(self.text())

    def _rate(self) -> float:
        """Rows per second over the last few seconds."""
        now_s = self._clock()
        while self._recent and now_s - self._recent[0][0] > limits.CLI_STATUS_RATE_S:
            self._recent.popleft()
        span_s = min(limits.CLI_STATUS_RATE_S, max(1.0, now_s - self._started_s))
        return sum(rows for _, rows in self._recent) / span_s

    def text(self) -> str:
        parts = [f"{self._table}: {self._state}"]
        if self.last_seqno is not None:
            parts.append(f"row {self.last_seqno:,}")
            parts.append(f"{self._rows:,} new at {self._rate():,.0f} rows/s")
        if self._lag_rows is not None:
            parts.append(f"{self._lag_rows:,} behind")
        return ", ".join(parts)

    def _described(self) -> dict[str, object]:
        return {
            "table": self._table,
            "state": self._state,
            "last_seqno": self.last_seqno,
            "rows": self._rows,
            "rows_per_s": round(self._rate(), 1),
            "lag_rows": self._lag_rows,
        }
