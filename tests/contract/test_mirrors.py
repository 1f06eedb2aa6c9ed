"""Appends to mirrors over every edge: a follower outside the server appends rows with their SeqNos."""

from __future__ import annotations

import threading
import uuid

import httpx
import pytest

TYPE = "text/sequence; charset=utf-8; schema=price; version=2"
MIRROR = {"content-type": TYPE, "stp-mirror": "true"}
NOW = {"timeout": "0"}


@pytest.fixture
def mirror(client: httpx.Client) -> str:
    name = f"/m/{uuid.uuid4().hex}"
    assert client.put(name, headers=MIRROR).status_code == 201
    return name


def row(seqno: int, record: str = "r") -> bytes:
    return f"{seqno}\t2026-01-08T00:00:{seqno % 60:02d}Z\t+\tkey{seqno}\t{record}\n".encode()


def rows(*seqnos: int) -> bytes:
    return b"".join(map(row, seqnos))


def post(client: httpx.Client, name: str, after: int, body: bytes = b"", **headers: str) -> httpx.Response:
    shown = {header.replace("_", "-"): value for header, value in headers.items()}
    return client.post(name, content=body, headers={"stp-after-seqno": str(after), **shown})


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, str(response.json()["type"]).removeprefix("urn:headwater:")


def test_rows_are_kept_with_their_seqnos_and_timestamps(client: httpx.Client, mirror: str) -> None:
    whole = row(3) + row(7, "a record\twith a tab") + "9\t\t-\tcafé\t\n".encode()
    done = post(client, mirror, 0, whole, content_type=TYPE)
    assert (done.status_code, done.headers["stp-last-seqno"]) == (204, "9")
    read = client.get(mirror, params=NOW)
    assert (read.content, read.headers["content-type"]) == (whole, TYPE)
    assert read.headers["stp-mirror"] == "true"
    assert "stp-gapless" not in read.headers
    assert post(client, mirror, 9, rows(10)).headers["stp-last-seqno"] == "10"
    assert client.get(mirror, params={"since_id": "7", **NOW}).content == whole[whole.index(b"9\t") :] + rows(10)


def test_a_mirror_is_created_once_and_empty(client: httpx.Client, mirror: str) -> None:
    assert client.put(mirror, headers=MIRROR).status_code == 200
    assert client.put(mirror, headers={"content-type": TYPE}).status_code == 409
    assert client.put(mirror, headers={**MIRROR, "content-type": "text/sequence; schema=other"}).status_code == 409
    assert client.put(f"{mirror}/b", headers=MIRROR, content=rows(1)).status_code == 400
    table = f"{mirror}/table"
    assert client.put(table, headers={"content-type": TYPE}).status_code == 201
    refused = client.put(table, headers=MIRROR)
    assert (refused.status_code, refused.json()["detail"]) == (
        409,
        "a stream exists at this path with a different kind",
    )


def test_a_repeat_is_ignored_and_what_is_new_in_it_is_appended(client: httpx.Client, mirror: str) -> None:
    for after, body in (
        (0, rows(1, 3, 5)),
        (0, rows(1, 3, 5)),
        (0, rows(1)),
        (1, rows(3)),
        (1, rows(3, 5, 6)),
        (5, rows(6)),
        (2, rows(3, 5, 6, 8)),  # a SeqNo in a gap
        (8, rows(9)),
    ):
        assert post(client, mirror, after, body).status_code == 204, (after, body)
    assert client.get(mirror, params=NOW).content == rows(1, 3, 5, 6, 8, 9)


def test_rows_that_do_not_fit_are_refused_and_change_nothing(client: httpx.Client, mirror: str) -> None:
    assert post(client, mirror, 0, rows(1, 3, 5)).status_code == 204
    for after, body in (
        (6, rows(7)),  # what lies between 5 and 6 would be missing
        (0, row(1, "other")),
        (1, row(3, "other, and longer than the row that is there")),
        (1, rows(5)),  # row 3 is left out
        (1, rows(5, 6)),
        (0, rows(1, 2, 3, 5)),  # row 2 was not there
        (0, rows(1, 2)),
        (3, row(4)),
        (3, row(4) + rows(5, 6)),
        (4, row(5, "a record that is longer than all the rows that the mirror has after its row four")),
    ):
        assert problem(post(client, mirror, after, body)) == (409, "mirror-mismatch"), (after, body)
    assert client.get(mirror, params=NOW).content == rows(1, 3, 5)


def test_a_body_is_checked_and_appended_atomically(client: httpx.Client, mirror: str) -> None:
    for body, said in (
        (rows(1, 2) + b"+\tkey\tchange\n", "line 3: a row begins with its SeqNo"),
        (rows(1, 2, 2), "line 3: row 2 does not come after row 2"),
        (rows(2, 1), "line 2: row 1 does not come after row 2"),
        (rows(0), "line 1: row 0 does not come after row 0"),
        (rows(1)[:-1], "line 1: the row does not end with a newline"),
        (rows(1) + b"\n", "line 2: a row begins with its SeqNo"),
        (rows(1) + b"2\tt\t*\tk\tr\n", "line 2: the action of row 2 must be + or -"),
        (rows(1) + b"2\tt\t+\t\tr\n", "line 2: the primary key of row 2 is empty"),
        (rows(1) + b"2\tt\t+\tk\n", "line 2: row 2 has 4 of the 5 fields"),
        (rows(1) + b"2\tt\t+\tk\t\xff\n", "line 2: byte 8 of the row is not UTF-8"),
        (rows(1) + b"02\tt\t+\tk\tr\n", "line 2: a row begins with its SeqNo"),
        (rows(1) + b"9223372036854775808\tt\t+\tk\tr\n", "line 2: a row begins with its SeqNo"),
        (rows(1) + b"2\tt\t+\tk\t" + b"r" * (1 << 20) + b"\n", "line 2: the row is longer than"),
    ):
        refused = post(client, mirror, 0, body)
        assert problem(refused) == (400, "invalid-change"), body[:100]
        assert said in refused.json()["detail"]
    many = b"".join(b"%d\tt\t+\tk\tr\n" % number for number in range(1, 100_002))
    assert problem(post(client, mirror, 0, many)) == (413, "too-many-messages")
    assert client.head(mirror).headers["stp-last-seqno"] == "0"
    assert post(client, mirror, 0, many[: many.index(b"100001\t")]).headers["stp-last-seqno"] == "100000"
    assert post(client, mirror, 99_000, many[many.index(b"99001\t") :]).headers["stp-last-seqno"] == "100001"
    assert client.get(mirror, params=NOW).content == many


def test_requests_that_are_not_rows_for_a_mirror(client: httpx.Client, mirror: str) -> None:
    assert problem(post(client, mirror, 0)) == (400, "empty-body")
    assert problem(post(client, mirror, 0, rows(1), producer_id="p"))[0] == 400
    assert problem(post(client, mirror, 0, rows(1), stream_seq="a"))[0] == 400
    assert problem(post(client, mirror, -1, rows(1)))[0] == 400
    assert problem(post(client, mirror, 0, rows(1), content_type="application/json"))[0] == 415
    assert problem(post(client, mirror, 0, rows(1), content_type="text/sequence; schema=other"))[0] == 409
    assert problem(client.post(mirror, content=b"+\tk\tr\n")) == (409, "conflict")  # changes
    assert problem(client.post(mirror, content=rows(1))) == (409, "conflict")  # without STP-After-SeqNo
    assert problem(post(client, f"{mirror}/missing", 0, rows(1)))[0] == 404
    table = f"{mirror}/table"
    client.put(table, headers={"content-type": TYPE})
    assert problem(post(client, table, 0, rows(1))) == (409, "conflict")
    assert client.head(mirror).headers["stp-last-seqno"] == "0"


def test_a_mirror_is_closed_after_its_last_row(client: httpx.Client, mirror: str) -> None:
    post(client, mirror, 0, rows(1, 2, 3))
    assert problem(post(client, mirror, 2, stream_closed="true")) == (409, "mirror-mismatch")
    assert problem(post(client, mirror, 0, rows(1), stream_closed="true")) == (409, "mirror-mismatch")
    for _ in range(2):
        closed = post(client, mirror, 2, rows(3, 4), stream_closed="true")
        assert (closed.status_code, closed.headers["stream-closed"]) == (204, "true")
    assert post(client, mirror, 4, stream_closed="true").status_code == 204
    assert post(client, mirror, 0, rows(1, 2, 3, 4)).headers["stream-closed"] == "true"
    assert problem(post(client, mirror, 4, rows(5))) == (409, "stream-closed")
    assert client.get(mirror).content == rows(1, 2, 3, 4)


def test_two_followers_write_to_one_mirror(client: httpx.Client, mirror: str) -> None:
    """Both send every row, in different batches. Each row is stored once."""
    whole = list(range(1, 401))

    def follow(size: int) -> None:
        position = 0
        while position < len(whole):
            batch = whole[max(0, position - 1) : position + size]  # with the last row before, as our client does
            answers.append(post(client, mirror, max(0, position - 1), rows(*batch)).status_code)
            position = batch[-1]

    answers: list[int] = []
    followers = [threading.Thread(target=follow, args=(size,)) for size in (3, 5, 7)]
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.join()
    assert set(answers) == {204}
    assert client.get(mirror, params=NOW).content == rows(*whole)


def test_a_fork_of_a_mirror_continues_after_a_row(client: httpx.Client, mirror: str) -> None:
    post(client, mirror, 0, rows(2, 4, 6))
    path = client.get(mirror, params=NOW).url.path
    fork = {"stream-forked-from": path, "stp-fork-seqno": "4", "stp-mirror": "true"}
    assert client.put(f"{mirror}/fork", headers=fork).status_code == 201
    assert post(client, f"{mirror}/fork", 2, rows(4, 8)).status_code == 204
    assert client.get(f"{mirror}/fork", params=NOW).content == rows(2, 4, 8)
    assert client.get(mirror, params=NOW).content == rows(2, 4, 6)


def test_a_fork_of_a_mirror_must_begin_at_an_existing_row(client: httpx.Client, mirror: str) -> None:
    """If it began in a gap, it could not continue with the next row of the source."""
    post(client, mirror, 0, rows(2, 4, 6))
    fork = {"stream-forked-from": client.get(mirror, params=NOW).url.path, "stp-mirror": "true"}
    for seqno in ("1", "5", "7"):
        assert problem(client.put(f"{mirror}/fork", headers={**fork, "stp-fork-seqno": seqno})) == (400, "invalid-fork")
    assert client.put(f"{mirror}/empty", headers={**fork, "stp-fork-seqno": "0"}).headers["stp-last-seqno"] == "0"
    assert client.put(f"{mirror}/whole", headers={**fork, "stp-fork-seqno": "6"}).headers["stp-last-seqno"] == "6"
