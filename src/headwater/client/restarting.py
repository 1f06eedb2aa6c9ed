"""What a reader does if the data at its position is gone: raise the error, or begin again at the data that is there.

Data is gone if it was trimmed or compacted, if the stream was deleted and created again, or if the server was restored
to an earlier state. A server answers 410 to each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from headwater.client.effects import Call, Flow
from headwater.errors import HeadwaterError

OnGone: TypeAlias = Literal["raise", "restart"] | Callable[[HeadwaterError], Any]
"""What to do if the data at the position is gone: raise the error, begin again, or call a function with the error and
then begin again. In the asyncio client it may be a coroutine function; if it raises, the read ends."""

log = logging.getLogger("headwater.client")


def check_on_gone(on_gone: OnGone) -> OnGone:
    if not callable(on_gone) and on_gone not in ("raise", "restart"):
        raise ValueError(f"on_gone is 'raise', 'restart' or a function, not {on_gone!r:.80}")
    return on_gone


def tell(on_gone: OnGone, url: str, error: HeadwaterError) -> Flow[None]:
    """Tell that a reader begins again, before it does."""
    log.warning("%s is read again from its beginning: %s", url, error)
    if callable(on_gone):
        yield Call(partial(on_gone, error))
