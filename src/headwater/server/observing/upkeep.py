"""What an operator has to mend or renew: files and keys that cannot be loaded again, and certificates that expire.

The server works on with what it has, so it stays ready. `/readyz` has a line for each of these, and there are metrics.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from headwater.limits import CERTIFICATE_WARNING_S
from headwater.log.quotas import Usage

_DAY_S = 86_400


class Reloaded(Protocol):
    """Something that is loaded again while the server runs."""

    @property
    def what(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def failures(self) -> int: ...

    @property
    def fault(self) -> str:
        """Why the current state is not in use; empty if it is."""


class Upkeep:
    """`reloaded` is a function, because the things that are loaded are known later."""

    def __init__(
        self,
        reloaded: Callable[[], Iterable[Reloaded]] = tuple,
        usage: Usage | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.reloaded = reloaded
        self._usage = usage
        self.certificate_until_s: float | None = None  # None: no TLS
        self._clock = clock

    def warnings(self) -> Iterator[str]:
        """They are public, so details are only in the log."""
        for one in self.reloaded():
            if one.fault:
                yield f"{one.what} cannot be loaded, and the previous content is in use"
        if self._usage is not None and self._usage.is_incomplete:
            yield "a token has its first quota of streams or bytes, which needs a restart"
        if self.certificate_until_s is not None:
            left_s = self.certificate_until_s - self._clock()
            if left_s <= 0:
                yield "the certificate has expired"
            elif left_s < CERTIFICATE_WARNING_S:
                yield f"the certificate expires in {math.ceil(left_s / _DAY_S)} days or less"
