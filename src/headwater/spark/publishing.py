"""Exactly-once writes to streams and tables: retries, replays and repartitioning never append a row twice.

Tasks do not append to the targets. A task returns its rows to the driver or, if there are many, stores them in its own
staging stream and returns their location (`staging`). When all tasks are done, the driver writes a list of what the
batch appends (`ledger`), and then appends it (`appending`) as the producer of the query, with the batch number as
epoch. The server recognises repeated appends as duplicates, and an older run of the query is fenced off.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set

import msgspec

from headwater.client import Client
from headwater.errors import (
    BatchReusedError,
    DataLossError,
    PartialWriteError,
    RequestError,
    SchemaError,
    SequenceGapError,
    StaleEpochError,
)
from headwater.spark.appending import Appending, is_final, joined
from headwater.spark.catalogue import NamedStreams
from headwater.spark.ledger import Ledger, Listed, ListLifetime
from headwater.spark.options import WriteOptions
from headwater.spark.staging import RowChunk, StagedRows, Storage, StoredRowsGoneError, discard, place_of
from headwater.spark.targets import check_stream, make_target, target_name

_JSON = "application/json"


class Publisher:
    """Publishes batches of one writer."""

    def __init__(
        self, client: Client, options: WriteOptions, writer: str, keep: ListLifetime = ListLifetime.UNTIL_NEXT_BATCH
    ) -> None:
        self._client = client
        self._options = options
        self._writer = writer
        self._keep = keep
        self._missing: Set[str] = frozenset()  # targets that did not exist when they were checked
        self._ledger = Ledger(client, writer, keep, options.max_request_bytes)

    def publish(self, batch: int, parts: Sequence[Sequence[RowChunk]], made_from: str = "") -> None:
        """Append the rows of the tasks, in the order of their partitions.

        `made_from` distinguishes batches with the same number: "offsets …" or "rows …", empty if unknown.
        """
        chunks, is_ours = self._together(batch, parts), False
        target = target_name(self._options)
        if chunks:
            self._check_targets(chunks)
            content_type = self._options.content_type or _JSON
            ours = Listed(chunks, content_type, target=target, made_from=made_from)
            listed, is_ours = self._ledger.agree(batch, ours)
        else:  # a retry without rows still completes the appends of an earlier attempt
            recorded = self._ledger.recorded(batch)
            if recorded is None:
                make_target(self._client, self._options)
                return
            listed = recorded
        try:
            self._ledger.check_same(batch, listed, target, made_from)
        except BatchReusedError:
            discard(self._client, {chunk.stored_in for chunk in chunks} - listed.places)
            raise
        if not listed.done:
            has_begun = self._ledger.pass_fence(batch, listed) and not is_ours
            self._append(batch, listed, has_begun=has_begun)
        discard(self._client, {chunk.stored_in for chunk in chunks} | listed.places)
        self._ledger.forget(batch)

    def abandon(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> None:
        """Delete the staged rows of a failed batch, unless its list exists: then a retry continues with them."""
        listed = self._ledger.recorded(batch)
        needed = listed.places if listed is not None else set()
        discard(self._client, {chunk.stored_in for part in parts for chunk in part} - needed)

    def _together(self, batch: int, parts: Sequence[Sequence[RowChunk]]) -> list[RowChunk]:
        """The chunks of all tasks, in order. Inline rows are staged first if there are many."""
        chunks = [chunk for part in parts for chunk in part]
        inline = sum(len(chunk.data) for chunk in chunks)
        if inline and (self._keep is ListLifetime.FOREVER or inline > self._options.max_request_bytes // 2):
            storage, stored = Storage(self._client, place_of(self._writer, batch, 0)), list[RowChunk]()
            for is_inline, group in itertools.groupby(chunks, lambda chunk: bool(chunk.data)):
                some = list(group)
                bodies = (StagedRows(chunk.target, chunk.data, 0) for chunk in some)
                stored += storage.store_all(bodies, self._options.max_request_bytes) if is_inline else some
            chunks = stored
        return joined(chunks, self._options.max_request_bytes)

    def _check_targets(self, chunks: list[RowChunk]) -> None:
        """Refuse a batch that a target does not accept, before its list is written."""
        if self._options.target is None:
            targets = dict.fromkeys(chunk.target for chunk in chunks)
            streams = NamedStreams(self._client).named(targets, ask_twice=False)
            self._missing = targets.keys() - streams.keys()
            for target in targets:
                check_stream(msgspec.structs.replace(self._options, target=target), streams.get(target))

    def _append(self, batch: int, listed: Listed, *, has_begun: bool) -> None:
        """Append what is listed. `has_begun`: an earlier attempt may have appended some of it."""
        options = msgspec.structs.replace(self._options, content_type=listed.content_type)
        appending = Appending(self._client, options, self._writer, batch, self._missing)
        try:
            appending.append(listed)
        except (StaleEpochError, SequenceGapError):
            raise
        except (SchemaError, RequestError) as error:
            if is_final(error) and not appending.may_have_appended and not has_begun:
                self._ledger.withdraw(batch, listed)
                raise
            message = f"{error}. A part of the batch may have been appended. The whole batch is recorded in"
            way_out = "a retry appends the rest when the target accepts it"
            raise PartialWriteError(f"{message} {self._ledger.list_of(batch).url}; {way_out}") from error
        except StoredRowsGoneError as error:
            recorded = self._ledger.recorded(batch)
            if recorded is None or not recorded.done:  # otherwise another driver committed first
                raise DataLossError(str(error)) from error
            return
        self._ledger.mark_done(batch)
