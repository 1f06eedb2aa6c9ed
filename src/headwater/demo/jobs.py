"""The jobs of the pipeline over the shop's streams, run by `headwater pipeline run` in a separate process.

    shop/*  ──materialize──▶  Delta table  ──publish──▶  state stream
                   │                       ──publish──▶  STP table
                   └──▶ quarantine

Their progress is read from their checkpoints and tables, not from the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater import limits
from headwater.demo.shop import STREAMS
from headwater.errors import ClientError
from headwater.positions import byte_position

PUBLISHED = "published/shop"
TABLE = "shop"
_CONFIG = """\
# The jobs of the demo. Show their progress with: headwater pipeline status FILE
url = "{url}"

[jobs.materialize]
job = "materialize"
streams = "{streams}"
table = "{lake}/shop"
sequence-by = "try_cast(get_json_object(value, '$.version') AS BIGINT)"
buckets = {buckets}
every-s = {every_s}

[jobs.to-stream]
job = "publish"
table = "{lake}/shop"
keys = "key"
value-column = "value"
type = "entity"
to = "{published}"
checkpoint = "{lake}/shop.to-stream"

[jobs.to-table]
job = "publish"
table = "{lake}/shop"
keys = "key"
value-column = "value"
to-table = "{to_table}"
checkpoint = "{lake}/shop.to-table"
"""
_PUBLISHING = ("to-stream", "to-table")


class Jobs:
    """The jobs: materialize, and publish twice."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url = url
        self._lake = directory / "lake"
        self._config = directory / "pipeline.toml"
        self._log = directory / "spark.log"
        self._checkpoint = self._lake / "shop.checkpoint"
        self._began_at = self._batches()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._config.write_text(
            _CONFIG.format(
                url=self._url,
                streams=",".join(STREAMS.values()),
                lake=self._lake.absolute(),
                buckets=limits.DEMO_BUCKETS,
                every_s=limits.DEMO_BATCH_EVERY_S,
                published=PUBLISHED,
                to_table=TABLE,
            )
        )
        command = [sys.executable, "-m", "headwater", "pipeline", "run", str(self._config)]
        with self._log.open("wb") as log:
            # In a separate session, so that Ctrl-C does not stop the jobs, which have to finish.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603

    def stop(self) -> None:
        """Stop the jobs after their current batches."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(limits.DEMO_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()  # loses nothing: the next run continues

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            why = lines[-1] if lines else "no output"
            raise ClientError(f"the pipeline ended with exit code {self._process.returncode}: {why}; see {self._log}")

    @property
    def have_begun(self) -> bool:
        """Whether Spark has started a batch in this run."""
        return self._batches() != self._began_at

    def _batches(self) -> tuple[int, int]:
        """The last batch that was started, and the last one that was committed."""
        begun, done = (_numbers(self._checkpoint / name) for name in ("offsets", "commits"))
        return max(begun, default=-1), max(done, default=-1)

    def reached(self) -> dict[str, int]:
        """The bytes of each stream that are in the table, from the committed offsets of the query."""
        from headwater.pipeline.checkpoints import position_of

        position = position_of(self._checkpoint)
        ends = {} if position is None else position.ends
        return {path: byte_position(place.offset) or 0 for path, place in ends.items()}

    def version(self) -> int | None:
        """The newest version of the table."""
        from headwater.pipeline.lake import Lake

        lake = Lake(str(self._lake / "shop"))
        return lake.open().version() if lake.exists() else None

    def published_versions(self) -> dict[str, int | None]:
        """The last version that each publish job has sent completely."""
        from headwater.pipeline.publishing import published_version

        return {name: published_version(self._lake / f"shop.{name}") for name in _PUBLISHING}

    def quarantine_size(self) -> int:
        from headwater.pipeline.lake import Lake

        lake = Lake(str(self._lake / "shop.quarantine"))
        return int(lake.open().count()) if lake.exists() else 0

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table."""
        return self._read("shop")

    def quarantined(self) -> list[dict[str, Any]]:
        return self._read("shop.quarantine")

    def _read(self, name: str) -> list[dict[str, Any]]:
        from headwater.pipeline.lake import Lake

        lake = Lake(str(self._lake / name))
        rows: list[dict[str, Any]] = lake.open().to_pyarrow_table().to_pylist() if lake.exists() else []
        return rows


def _numbers(directory: Path) -> Iterator[int]:
    return (int(path.name) for path in directory.glob("*") if path.name.isdigit())
