"""The ledger of a writer: for each batch, a list on the server of what the batch appends.

The first list that is written for a batch counts. A retry of the batch finds the list and uses it, even if its own rows
are in another order or in other partitions. So each append of a batch always has the same content, and the server
recognises a repeated append by its number.

A list records its target and its origin: the offsets of the query, or a hash of the rows. If a batch with the same
number has another target or origin, the number was used before for other rows, and the batch is refused.

    _spark/{writer}/{batch}/list                     what a batch appends, and a mark when it is complete
    _spark/{writer}/{batch}/{partition}-{attempt}    staged rows of a task
    _spark/{writer}/fence                            shows an older run that a later batch has started
    _spark/{writer}/last                             the last batch, on servers that cannot list streams
"""

from __future__ import annotations

import contextlib
import enum

import msgspec

from headwater import limits
from headwater.client import AppendResult, Client, ProducerTuple, Stream
from headwater.errors import (
    BatchReusedError,
    BodyTooLargeError,
    DataLossError,
    HeadwaterError,
    StaleEpochError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.log.retention import KEEP_ALL
from headwater.spark.options import JOURNAL_ROOT
from headwater.spark.staging import (
    BYTES,
    RowChunk,
    Storage,
    StoredRowsGoneError,
    directory,
    discard,
    place_of,
    read_stored,
    too_large,
)

_LENGTH_BYTES = 8
_DONE = b"done"


class Listed(msgspec.Struct, frozen=True):
    """What a batch appends, in order. The chunks of a target are numbered from 0.

    A list that is too long for one request is stored in pieces. `target` and `made_from` are empty if unknown.
    """

    chunks: list[RowChunk]
    content_type: str
    pieces: list[RowChunk] = []
    done: bool = False
    target: str = ""
    made_from: str = ""

    @property
    def places(self) -> set[str]:
        """The staging streams that the list refers to."""
        return {chunk.stored_in for chunk in (*self.chunks, *self.pieces)}


_lists = msgspec.msgpack.Decoder(Listed)


class ListLifetime(enum.Enum):
    """How long the list of a batch is needed."""

    UNTIL_NEXT_BATCH = "a query replays its last batch, and no other"
    FOREVER = "a write with an id may be repeated at any time"
    NONE = "nothing can repeat it"


class Ledger:
    def __init__(self, client: Client, writer: str, keep: ListLifetime, request_bytes: int) -> None:
        self._client = client
        self._writer = writer
        self._keep = keep
        self._request_bytes = request_bytes

    def list_of(self, batch: int) -> Stream:
        return self._client.stream(f"{directory(self._writer, batch)}/list", content_type=BYTES)

    def agree(self, batch: int, ours: Listed) -> tuple[Listed, bool]:
        """Write the list of a batch, or return the one that exists, and whether it is ours: the first append counts."""
        text = msgspec.msgpack.encode(ours)
        if len(text) > self._request_bytes // 2 + limits.SPARK_INLINE_BYTES:
            ours = msgspec.structs.replace(ours, pieces=self._in_pieces(batch, text))
            text = msgspec.msgpack.encode(msgspec.structs.replace(ours, chunks=[]))
        framed = len(text).to_bytes(_LENGTH_BYTES, "big") + text
        try:
            first = not self._append_to(self.list_of(batch), framed, ProducerTuple("list", 0, 0)).duplicate
        except BodyTooLargeError as error:
            raise too_large(error) from error
        listed = ours if first else self.recorded(batch)
        if listed is None:
            raise DataLossError(f"{self.list_of(batch).url} was deleted while the batch was published")
        discard(self._client, {piece.stored_in for piece in ours.pieces} - listed.places)  # `listed` may be `ours`
        return listed, first

    def _in_pieces(self, batch: int, text: bytes) -> list[RowChunk]:
        storage, size = Storage(self._client, place_of(self._writer, batch, 0)), self._request_bytes
        return [storage.store("", text[start : start + size]) for start in range(0, len(text), size)]

    def _append_to(self, stream: Stream, body: bytes, producer: ProducerTuple) -> AppendResult:
        """Append to an internal stream; create it if it does not exist."""
        try:
            return stream.append_body(body, producer=producer)
        except StreamNotFoundError:
            ttl_s = limits.SPARK_STAGED_TTL_S if self._keep is ListLifetime.NONE else None
            stream.create(content_type=BYTES, ttl_s=ttl_s, retention=KEEP_ALL)
            return stream.append_body(body, producer=producer)

    def recorded(self, batch: int) -> Listed | None:
        try:
            text = b"".join(self.list_of(batch).read(type=bytes).all())
        except (StreamNotFoundError, StreamGoneError):
            return None
        length = _LENGTH_BYTES + int.from_bytes(text[:_LENGTH_BYTES], "big")
        if len(text) < max(length, _LENGTH_BYTES + 1):
            return None  # created, but still empty
        listed = _lists.decode(text[_LENGTH_BYTES:length])
        done = len(text) > length
        if listed.pieces and not done:
            try:
                whole = _lists.decode(b"".join(read_stored(self._client, piece) for piece in listed.pieces))
            except StoredRowsGoneError as error:
                raise DataLossError(str(error)) from error
            listed = msgspec.structs.replace(whole, pieces=listed.pieces)
        return msgspec.structs.replace(listed, done=done)

    def check_same(self, batch: int, listed: Listed, target: str, made_from: str) -> None:
        """Refuse a batch whose number was used for another target or other rows, because its rows would be dropped."""
        message = f"{self._label(batch)} was recorded in {self.list_of(batch).url}"
        if listed.target and listed.target != target:
            raise BatchReusedError(f"{message} for {listed.target}, not for {target}. {self._way_out(batch)}")
        kinds = (listed.made_from.partition(" ")[0], made_from.partition(" ")[0])
        if kinds[0] == kinds[1] and listed.made_from != made_from:
            how = f"{_shown(listed.made_from)}, and now has other {kinds[0]}: {_shown(made_from)}"
            raise BatchReusedError(f"{message} with {how}. {self._way_out(batch)}")

    def _label(self, batch: int) -> str:
        if self._keep is ListLifetime.UNTIL_NEXT_BATCH:
            return f"batch {batch} of this query"
        return f"the write with this writeId and the writeVersion {batch}"

    def _way_out(self, batch: int) -> str:
        if self._keep is ListLifetime.UNTIL_NEXT_BATCH:
            return (
                "Nothing was written. If the checkpoint was copied, use its original target, or a new checkpoint with"
                f" startingOffsets. If offsets/{batch} of the checkpoint was deleted, restore it. If the query produces"
                " other rows when a batch is repeated, set checkRepeats to false"
            )
        return (
            "Nothing was written. Use a different writeId for each DataFrame, and a higher writeVersion for each new"
            " write. If a repeated write produces other rows, set checkRepeats to false"
        )

    def withdraw(self, batch: int, listed: Listed) -> None:
        """Delete a list from which nothing was appended, so that the next attempt writes its own."""
        self.list_of(batch).delete()
        discard(self._client, listed.places)

    def mark_done(self, batch: int) -> None:
        self.list_of(batch).append_body(_DONE, producer=ProducerTuple("done", 0, 0))

    def pass_fence(self, batch: int, listed: Listed) -> bool:
        """Fail if a later batch was started. It has deleted streams of this one, which must not be created again.

        Returns whether an earlier attempt of the batch has passed the fence before.
        """
        if self._keep is ListLifetime.NONE:
            return False
        fence = self._client.stream(f"{JOURNAL_ROOT}/{self._writer}/fence", content_type=BYTES)
        try:
            return self._append_to(fence, b".", ProducerTuple("batch", batch, 0)).duplicate
        except StaleEpochError as error:
            raise behind(", ".join(sorted({chunk.target for chunk in listed.chunks})), batch, error) from error

    def forget(self, batch: int) -> None:
        """Delete the lists and staged rows that no retry can need any more."""
        if self._keep is ListLifetime.NONE:
            discard(self._client, {f"{directory(self._writer, batch)}/list"})
        current = f"{directory(self._writer, batch)}/"
        try:
            paths = [info.path for info in self._client.list(f"{JOURNAL_ROOT}/{self._writer}/")]
            discard(self._client, {path for path in paths if path < current})
        except HeadwaterError:
            with contextlib.suppress(HeadwaterError):
                self._forget_unlisted(batch)

    def _forget_unlisted(self, batch: int) -> None:
        """Delete the previous list on a server that cannot list streams. A stream has the number of the last batch."""
        if self._keep is ListLifetime.NONE:
            return
        last = self._client.stream(f"{JOURNAL_ROOT}/{self._writer}/last", content_type=BYTES)
        try:
            before = b"".join(last.read(type=bytes).all())
            last.delete()
        except (StreamNotFoundError, StreamGoneError):
            before = b""
        last.create(content_type=BYTES, messages=[b"%d" % batch], retention=KEEP_ALL)
        if before.isdigit() and int(before) < batch:
            discard(self._client, {f"{directory(self._writer, int(before))}/list"})


def _shown(made_from: str) -> str:
    kind, _, rest = made_from.partition(" ")
    return f"{rest.partition(' ')[0]} rows" if kind == "rows" else f"{kind} {rest[:12]}"


def behind(target: str, batch: int, error: StaleEpochError) -> StaleEpochError:
    message = f"{target} has rows of a later batch than batch {batch} of this query: another run of the query is ahead"
    return StaleEpochError(f"{message} of this one, or the checkpoint was set back ({error})")
