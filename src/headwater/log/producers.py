"""The producer table: what the tuple of an idempotent producer means to a stream.

known producer   epoch     sequence        outcome
no               any       0               accepted, epoch established
no               any       > 0             gap, 0 expected
yes              smaller   any             fenced
yes              same      ≤ last          duplicate
yes              same      last + 1        accepted
yes              same      > last + 1      gap, last + 1 expected
yes              larger    0               accepted, new epoch
yes              larger    > 0             a new epoch starts at 0
expired          ≤ last    any             fenced: whether it is a duplicate is no longer known
expired          larger    0               accepted, new epoch

A producer that was idle for `PRODUCER_IDLE_S` expires. Only a hash of its id and its epoch are kept, so that no
request of it is ever carried out twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headwater.errors import NewEpochSequenceError, SequenceGapError, StaleEpochError


class ProducerTuple(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The identity of one request of an idempotent producer."""

    id: str
    epoch: int
    seq: int


class ProducerState(NamedTuple):
    """What a stream knows of one producer."""

    epoch: int
    seq: int  # the last one accepted
    at_ms: int  # when that was


def hash_of(producer_id: str) -> int:
    """What is kept of the id of a producer that has expired."""
    return int.from_bytes(hashlib.blake2b(producer_id.encode(), digest_size=8).digest(), "little", signed=True)


def expire(
    producers: dict[str, ProducerState], expired: Mapping[int, int], before_ms: int
) -> tuple[dict[str, ProducerState], dict[int, int]]:
    """The producers used since a moment, and the epochs of the others by the hash of their ids."""
    idle = {hash_of(name): known.epoch for name, known in producers.items() if known.at_ms < before_ms}
    kept = {name: known for name, known in producers.items() if known.at_ms >= before_ms}
    return kept, {**expired, **idle}


def check_not_expired(expired: Mapping[int, int], producer: ProducerTuple) -> None:
    epoch = expired.get(hash_of(producer.id)) if expired else None
    if epoch is None:
        return
    if producer.epoch <= epoch:
        raise StaleEpochError(f"epoch {epoch} of this producer has expired; go on with a higher one", epoch=epoch)
    if producer.seq != 0:
        raise NewEpochSequenceError(f"epoch {producer.epoch} is new, expected sequence 0, got {producer.seq}")


def is_duplicate(known: ProducerState | None, producer: ProducerTuple) -> bool:
    """True for a duplicate, False for a request to carry out; every other row of the table is raised."""
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
