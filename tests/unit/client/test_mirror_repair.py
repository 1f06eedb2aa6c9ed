"""A mirror that was behind while rows of its source were removed deletes what the source does not have any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.client import Client, Put, Remove, Table
from headwater.errors import HistoryChangedError
from tests.servers import Server
from tests.shells import SHELLS, client_of
from tests.trimming import keep_last


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"m/{abs(hash(request.node.name)):x}"


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with client_of(request.param, server.url) as client:
        yield client


def mirror(client: Client, name: str, source: Table) -> list[bool]:
    """Mirror up to the last row. Returns which steps were repairs."""
    steps = []
    for progress in client.table(name).mirror(source):
        steps.append(progress.repaired)
        if progress.last_seqno == source.info().last_seqno:
            break
    return steps


def contents(table: Table) -> dict[str, str]:
    return {key: row.record for key, row in table.active().items()}


def test_a_mirror_that_was_behind_has_no_rows_that_were_deleted(client: Client, prefix: str) -> None:
    source = client.table(f"{prefix}/source")
    source.create()
    source.append([Put("a", "1"), Put("b", "2"), Put("c", "3")])
    mirror(client, f"{prefix}/mirror", source)
    source.append([Remove("a"), Remove("b"), Put("x", "6"), Remove("x")])
    source.append([Put("c", "8"), Put("d", "9")])
    keep_last(source, 2)
    copy = client.table(f"{prefix}/mirror")
    reader = copy.follow(since_id=3)  # of the mirror itself: it sees deletions as any others
    assert True in mirror(client, f"{prefix}/mirror", source)
    assert contents(copy) == contents(source) == {"c": "8", "d": "9"}
    rows = []
    for some in reader.batches():
        rows += [(row.seqno, row.action, row.key) for row in some]
        if len(rows) == 4:
            break
    assert rows == [(4, "-", "a"), (5, "-", "b"), (8, "+", "c"), (9, "+", "d")]
    source.append([Put("e", "10")])
    assert True not in mirror(client, f"{prefix}/mirror", source)
    assert contents(copy) == contents(source)


def test_a_mirror_that_is_killed_after_the_repair_repeats_it_without_effect(client: Client, prefix: str) -> None:
    source = client.table(f"{prefix}/source")
    source.create()
    source.append([Put("a", "1"), Put("b", "2")])
    mirror(client, f"{prefix}/mirror", source)
    source.append([Remove("a")])
    source.append([Put("x", "4"), Remove("x")])
    source.append([Put("c", "6")])
    keep_last(source, 1)
    for progress in client.table(f"{prefix}/mirror").mirror(source):
        if progress.repaired:
            break  # before row 6
    mirror(client, f"{prefix}/mirror", source)
    assert contents(client.table(f"{prefix}/mirror")) == contents(source)


def test_a_mirror_that_cannot_be_repaired_ends_with_an_error(client: Client, prefix: str) -> None:
    source = client.table(f"{prefix}/source")
    source.create()
    source.append([Put(f"k{n}", "1") for n in range(9)])
    mirror(client, f"{prefix}/mirror", source)
    source.append([Put("k9", "1")])
    source.append([Put("k10", "1")])
    keep_last(source, 1)
    with pytest.raises(HistoryChangedError, match="9 keys of the mirror"):
        mirror(client, f"{prefix}/mirror", source)
    assert len(contents(client.table(f"{prefix}/mirror"))) == 9
