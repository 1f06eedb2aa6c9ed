"""Which checkpoint and which tables of a job belong together.

A job continues from its checkpoint. If its table was deleted, set back or replaced, it lacks the rows of earlier
batches. So the table must have the batch before the one with which the checkpoint continues: every batch is committed
to it, also one without rows. The tables beside it are named in its properties, by the ids that Delta gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from headwater.errors import CheckpointMismatchError
from headwater.pipeline.checkpoints import hash_of_range, job_of, last_batch
from headwater.pipeline.lake import Lake, TableBatch
from headwater.pipeline.locations import local_path

_BESIDE = "headwater.beside"  # the property of a table with the ids of the tables beside it
_PREPARING = ("CREATE TABLE", "ADD COLUMN")  # the operations before the first batch


class TableGroup:
    """The table of a job, the tables beside it by name, and the checkpoint of the job."""

    def __init__(self, table: Lake, beside: Mapping[str, Lake], checkpoint: str) -> None:
        self._table = table
        self._beside = beside
        self._checkpoint = checkpoint

    def check(self) -> None:
        """Refuse tables that do not belong together. Nothing was created or changed so far."""
        directory = local_path(self._checkpoint)
        batch = None if directory is None else last_batch(directory)
        if not self._table.exists():
            if batch is not None:
                raise self._refusal(f"{self._table.uri} does not exist, but {self._checkpoint} is at batch {batch}")
            self._check_unused()
            return
        table = self._table.open()
        self._check_beside(table)
        if directory is not None and batch is not None:
            job = job_of(directory) or ""
            self.check_before(table, TableBatch(job, batch + 1, 0), hash_of_range(directory, batch))
            self._check_batches(table, job)

    def _check_unused(self) -> None:
        """Refuse tables beside it that a batch has changed. A job that was killed as it started leaves unused ones."""
        for lake in self._beside.values():
            if lake.exists() and not _is_unused(lake.open()):
                raise self._refusal(f"{lake.uri} belongs to {self._table.uri}, which does not exist")

    def _check_beside(self, table: DeltaTable) -> None:
        ids = json.loads(table.metadata().configuration.get(_BESIDE, "{}"))
        for name, lake in self._beside.items():
            if not lake.exists():
                raise self._refusal(f"{lake.uri}, which belongs to {self._table.uri}, does not exist")
            if name in ids and ids[name] != str(lake.open().metadata().id):
                raise self._refusal(f"{lake.uri} is not the table that belongs to {self._table.uri}: it was replaced")

    def _check_batches(self, table: DeltaTable, job: str) -> None:
        """Refuse tables beside it that lack a batch which has changed them."""
        for name, lake in self._beside.items():
            wanted, done = table.transaction_version(f"{job}.{name}"), lake.open().transaction_version(job)
            if wanted is not None and (done is None or done < wanted):
                raise self._refusal(f"{lake.uri} was set back: it lacks batch {wanted} of {self._table.uri}")

    def open(self) -> DeltaTable:
        """The table, during a run."""
        try:
            return self._table.open()
        except TableNotFoundError:
            raise self._refusal(f"{self._table.uri} was deleted while the job was running") from None

    def check_before(self, table: DeltaTable, batch: TableBatch, made_of: int | None) -> None:
        """Refuse a table that lacks the batch before this one, which ended as `made_of` says (None: not known)."""
        done = table.transaction_version(batch.job)
        if not batch.number or (done is not None and done >= batch.number):
            return
        at = f"{self._checkpoint} continues with batch {batch.number}"
        if done is None:
            raise self._refusal(f"{self._table.uri} is not the table of the checkpoint: {at}, and it has none of them")
        if done < batch.number - 1:
            raise self._refusal(f"{self._table.uri} was set back: {at}, and its last one is batch {done}")
        if made_of not in (None, batch.range_in(table)):
            raise self._refusal(f"{self._table.uri} has other rows in batch {done} than the checkpoint: {at}")

    def properties(self) -> dict[str, str]:
        """The properties of the table, which name the tables beside it. They must exist."""
        return {_BESIDE: json.dumps({name: str(lake.open().metadata().id) for name, lake in self._beside.items()})}

    def _refusal(self, what: str) -> CheckpointMismatchError:
        every = ", ".join([self._table.uri, *(lake.uri for lake in self._beside.values()), self._checkpoint])
        return CheckpointMismatchError(f"{what}. Restore what is missing, or delete {every} to start over")


def _is_unused(table: DeltaTable) -> bool:
    """Whether a table was only created and given columns, as far as its log tells: it must have its beginning."""
    commits = table.history()
    return len(commits) > table.version() and all(commit.get("operation") in _PREPARING for commit in commits)
