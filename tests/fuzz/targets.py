"""Every target by its name."""

from __future__ import annotations

from tests.fuzz import auth, client, edges, store, streams, tables
from tests.fuzz.inputs import Target

TARGETS: dict[str, Target] = {
    **edges.TARGETS,
    **auth.TARGETS,
    **streams.TARGETS,
    **tables.TARGETS,
    **client.TARGETS,
    **store.TARGETS,
}
