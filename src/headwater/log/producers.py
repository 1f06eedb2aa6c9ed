"""The producer table: how a stream treats a request of an idempotent producer.

known producer   epoch     sequence        outcome
no               any       0               accepted, epoch established
no               any       > 0             gap, 0 expected
yes              smaller   any             fenced
yes              same      ≤ last          duplicate
yes              same      last + 1        accepted
yes              same      > last + 1      gap, last + 1 expected
yes              larger    0               accepted, new epoch
yes              larger    > 0             a new epoch starts at 0
expired          ≤ last    any             fenced, because it may be a duplicate
expired          larger    0               accepted, new epoch

A producer that was idle for `PRODUCER_IDLE_S` expires: only its epoch and a hash of its id are kept. They are enough to
refuse a late retry. `known` decides this by the time of the command, so it does not matter when the store removes what
is no longer needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headwater import limits
from headwater.errors import NewEpochSequenceError, SequenceGapError, StaleEpochError


class ProducerTuple(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Identifies one request of an idempotent producer."""

    id: str
    epoch: int
    seq: int


class ProducerState(NamedTuple):
    """The last accepted request of one producer."""

    epoch: int
    seq: int  # of the last accepted request
    at_ms: int  # time of that request


def hash_of(producer_id: str) -> int:
    """The hash of a producer id, which is kept after the producer has expired."""
    return int.from_bytes(hashlib.blake2b(producer_id.encode(), digest_size=8).digest(), "little", signed=True)


def expire(
    producers: dict[str, ProducerState], expired: Mapping[int, int], before_ms: int
) -> tuple[dict[str, ProducerState], dict[int, int]]:
    """Split producers into those used since a time, and the epochs of the others by the hash of their ids."""
    idle = {hash_of(name): known.epoch for name, known in producers.items() if known.at_ms < before_ms}
    kept = {name: known for name, known in producers.items() if known.at_ms >= before_ms}
    return kept, {**expired, **idle}


def known(
    producers: Mapping[str, ProducerState], expired: Mapping[int, int], producer: ProducerTuple, now_ms: int
) -> ProducerState | None:
    """The state of a producer at a time; None if it is new. Raises an error if it has expired, unless its epoch is
    higher."""
    state = producers.get(producer.id)
    if state is not None and now_ms - state.at_ms <= limits.PRODUCER_IDLE_S * 1000:
        return state
    if state is not None:
        check_not_expired(state.epoch, producer)
    elif expired:
        check_not_expired(expired.get(hash_of(producer.id)), producer)
    return None


def check_not_expired(epoch: int | None, producer: ProducerTuple) -> None:
    """Check a request of a producer that has expired in an epoch; None if it is new."""
    if epoch is None:
        return
    if producer.epoch <= epoch:
        raise StaleEpochError(f"epoch {epoch} of this producer has expired; use a higher epoch", epoch=epoch)
    if producer.seq != 0:
        raise NewEpochSequenceError(f"epoch {producer.epoch} is new, expected sequence 0, got {producer.seq}")


def is_duplicate(known: ProducerState | None, producer: ProducerTuple) -> bool:
    """Return True for a duplicate and False for a new request; raise the error for the other rows of the table."""
    if known is None:
        _check_gap(0, producer.seq)
        return False
    if producer.epoch < known.epoch:
        raise StaleEpochError(f"epoch {producer.epoch} was fenced by epoch {known.epoch}", epoch=known.epoch)
    if producer.epoch > known.epoch:
        if producer.seq != 0:
            raise NewEpochSequenceError(f"epoch {producer.epoch} is new, expected sequence 0, got {producer.seq}")
        return False
    if producer.seq <= known.seq:
        return True
    _check_gap(known.seq + 1, producer.seq)
    return False


def _check_gap(expected: int, received: int) -> None:
    if received != expected:
        raise SequenceGapError(
            f"expected sequence {expected}, received {received}", expected=expected, received=received
        )
