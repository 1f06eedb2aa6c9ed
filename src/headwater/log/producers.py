"""The producer table: what an idempotent producer's tuple means to a stream.

known producer   epoch     sequence        outcome
no               any       0               accepted, epoch established
no               any       > 0             gap, 0 expected
yes              smaller   any             fenced
yes              same      ≤ last          duplicate
yes              same      last + 1        accepted
yes              same      > last + 1      gap, last + 1 expected
yes              larger    0               accepted, new epoch
yes              larger    > 0             a new epoch starts at 0
"""

from __future__ import annotations

import msgspec

from headwater.errors import NewEpochSequenceError, SequenceGapError, StaleEpochError


class ProducerTuple(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The identity of one request of an idempotent producer."""

    id: str
    epoch: int
    seq: int


def is_duplicate(known: tuple[int, int] | None, producer: ProducerTuple) -> bool:
    """True for a duplicate, False for a request to carry out; every other row of the table is raised."""
    from headwater.protocol.streams import headers

    if known is None:
        _check_gap(0, producer.seq)
        return False
    epoch, last = known
    if producer.epoch < epoch:
        raise StaleEpochError(
            f"epoch {producer.epoch} was fenced by epoch {epoch}",
            headers=((headers.PRODUCER_EPOCH, str(epoch)),),
        )
    if producer.epoch > epoch:
        if producer.seq != 0:
            raise NewEpochSequenceError(f"epoch {producer.epoch} is new, expected sequence 0, got {producer.seq}")
        return False
    if producer.seq <= last:
        return True
    _check_gap(last + 1, producer.seq)
    return False


def _check_gap(expected: int, received: int) -> None:
    from headwater.protocol.streams import headers

    if received != expected:
        raise SequenceGapError(
            f"expected sequence {expected}, received {received}",
            headers=(
                (headers.PRODUCER_EXPECTED_SEQ, str(expected)),
                (headers.PRODUCER_RECEIVED_SEQ, str(received)),
            ),
        )
