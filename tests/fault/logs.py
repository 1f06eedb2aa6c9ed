"""What the servers of a simulated history log."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator


@contextlib.contextmanager
def dropped() -> Iterator[None]:
    """Log nothing: pytest keeps each record until the end of the test, with the servers that its traceback holds, and a
    test runs thousands of histories. HISTORY_LOGS=1 keeps them, to look into one seed."""
    former = logging.root.manager.disable
    if not os.environ.get("HISTORY_LOGS"):
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(former)
