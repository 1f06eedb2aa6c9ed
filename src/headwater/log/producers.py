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

The producers of a stream are in order of their last request, so that those which were idle longest are found without a
search. Each new producer expires up to two of them. A new producer is refused while the stream has `producers_max` that
are not idle. None of them is dropped for it, because each of them may still retry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from headwater import limits
from headwater.errors import NewEpochSequenceError, SequenceGapError, StaleEpochError, TooManyProducersError

_HASHED = "\n"  # no producer id contains it, because it comes from a header


class ProducerTuple(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Identifies one request of an idempotent producer."""

    id: str
    epoch: int
    seq: int


class ProducerState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last accepted request of one producer."""

    epoch: int
    seq: int  # of the last accepted request
    at_ms: int  # time of that request


Producers: TypeAlias = dict[str, ProducerState]  # by `key_of` their ids, in order of their last request


def key_of(producer_id: str) -> str:
    """The key under which a producer is kept: its id, or a digest of a long id, which takes less memory."""
    if len(producer_id) <= limits.PRODUCER_KEY_LENGTH_MAX:
        return producer_id
    return _HASHED + hashlib.blake2b(producer_id.encode(), digest_size=16).hexdigest()


def hash_of(key: str) -> int:
    """The hash of a producer's key, which is kept after the producer has expired."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)


def note(known: Producers, expired: dict[int, int], producer: ProducerTuple, at_ms: int) -> None:
    """Note an accepted request. A new producer expires some that are idle."""
    if note_last(known, producer, at_ms):
        _expire_some(known, expired, at_ms)


def note_last(known: Producers, producer: ProducerTuple, at_ms: int) -> bool:
    """Note an accepted request as the last one. Returns whether the producer is new."""
    key = key_of(producer.id)
    is_new = known.pop(key, None) is None  # the order is that of the last request
    known[key] = ProducerState(producer.epoch, producer.seq, at_ms)
    return is_new


def _expire_some(known: Producers, expired: dict[int, int], now_ms: int) -> None:
    for _ in range(limits.PRODUCERS_EXPIRED_AT_ONCE):
        key = next(iter(known))
        if not _is_idle(known[key], now_ms):
            return
        expired[hash_of(key)] = known.pop(key).epoch


def _is_idle(known: ProducerState, now_ms: int) -> bool:
    return known.at_ms < now_ms - limits.PRODUCER_IDLE_S * 1000


def add_newer(known: Producers, newer: Producers) -> None:
    """Add producers that made later requests, and keep the order."""
    for key, state in newer.items():
        known.pop(key, None)
        known[key] = state


def check_room(known: Producers, now_ms: int, producers_max: int) -> None:
    """Refuse a new producer if the stream has too many that are not idle."""
    if len(known) >= producers_max and not _is_idle(next(iter(known.values())), now_ms):
        raise TooManyProducersError(
            f"the stream has {len(known)} producers; the limit is {producers_max} (producers_per_stream_max). "
            f"A producer that makes no request for {limits.PRODUCER_IDLE_S // 86_400} days makes room for another one"
        )


def known(
    producers: Producers, expired: Mapping[int, int], producer: ProducerTuple, now_ms: int
) -> ProducerState | None:
    """The state of a producer at a time; None if it is new. Raises an error if it has expired, unless its epoch is
    higher."""
    state = producers.get(key_of(producer.id))
    if state is not None and not _is_idle(state, now_ms):
        return state
    if state is not None:
        check_not_expired(state.epoch, producer)
    elif expired:
        check_not_expired(expired.get(hash_of(key_of(producer.id))), producer)
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
