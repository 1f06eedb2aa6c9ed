"""The jobs of a data pipeline over streams: archive, replay, materialize, publish and snapshot.

Each takes a Spark session and options, and returns a running `Job`.
"""

from __future__ import annotations

from headwater.pipeline.archive import archive
from headwater.pipeline.jobs import Job, JobProgress
from headwater.pipeline.materialize import materialize
from headwater.pipeline.publish import publish
from headwater.pipeline.replay import replay
from headwater.pipeline.snapshot import snapshot

__all__ = ["Job", "JobProgress", "archive", "materialize", "publish", "replay", "snapshot"]
