"""The STP specification, sentence by sentence, over every edge.

`SENTENCES` has each sentence of the draft (000) and of its README (001) that binds servers, clients or recipients of
Notify, by section. A test names those that it shows with `shows`; a sentence without a test fails the last one here.
Where the two disagree on Notify, the draft rules: `surl` is optional.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx
import pytest
from bench.servers import headwater

from headwater.client import Retry
from tests.contract.tables import (
    FORM,
    NOW,
    SCHEMA,
    STAMP,
    WHOLE_TYPE,
    advertise,
    advertised,
    meanwhile,
    problem,
    rows,
    seqnos,
)
from tests.nurls import receiver
from tests.shells import SHELLS, client_of
from tests.table_servers import head, hostile_server, lines, table_server
from tests.waiting import wait_for, wait_until

SENTENCES = {
    # Draft
    "000 2 row": "Each row is a TSV line: SeqNo \\t Timestamp \\t Action \\t PrimaryKey \\t Record",
    "000 2.1 seqno": "SeqNo: integer, monotonic per table",
    "000 2.1 timestamp": "Timestamp: RFC3339 UTC timestamp (informational; not authoritative)",
    "000 2.1 action": "Action: + add/replace, - delete",
    "000 2.1 key": "PrimaryKey: the key the action applies to",
    "000 2.1 record": "Record: free-form schema-defined string (may contain spaces; SHOULD avoid tabs)",
    "000 2.2 order": "Servers SHOULD return rows in strictly increasing SeqNo order for any response",
    "000 2.2 duplicates": "Clients MUST handle duplicate rows (same SeqNo) idempotently",
    "000 3 content type": "STP responses MUST include Content-Type: text/sequence; charset=utf-8; schema=…; version=…",
    "000 3 last seqno": "Servers MAY also include STP-Last-SeqNo: <n>",
    "000 4.1 since": "since_id=N returns rows with SeqNo > N",
    "000 4.1 tail": "since_id=-N returns the last N rows",
    "000 4.1 absent": "if absent, treat as since_id=0",
    "000 4.2 stream": "Servers SHOULD stream rows until timeout or idle, then close",
    "000 4.2 reconnect": "Clients reconnect using last processed SeqNo",
    "000 5 nurls": "Participants MAY expose Notify URLs that accept HTTP POSTs with … x-www-form-urlencoded",
    "000 5 advisory": "Notify POSTs are advisory",
    "000 5.1 surl optional": "surl MAY be present",
    "000 5.1 surl once": "If present, it MUST appear exactly once",
    "000 5.1 surl valid": "and MUST be a valid STP SURL",
    "000 5.1 handshake": "If surl is absent, the Notify POST is treated as NURL advertisement / handshake only",
    "000 5.1 values": "All other parameters MUST have values that are valid Notify URLs (NURLs)",
    "000 5.1 unknown": "Unknown parameter names MUST be ignored",
    "000 5.1 repeat": "Notify POSTs MAY repeat and MUST be treated as idempotent",
    "000 5.1 get": "Recipients MUST GET surl (when provided) as the authoritative source of state",
    "000 6 retain": "Servers SHOULD retain historical SeqNo rows for replay",
    "000 6 tailing": "Clients MAY request since_id=-N for tailing",
    "000 6 document": "Implementations that compact history SHOULD document retention policy",
    # README
    "001 example": "GET /table?since_id=42 with Accept: … schema=endpoint_manifest; version=1",
    "001 duplicates": "Clients MUST tolerate duplicates and process rows idempotently",
    "001 order": "strictly increasing SeqNo per response",
    "001 content type": "Required response header: Content-Type",
    "001 since": "?since_id=N → rows with SeqNo > N; ?since_id=-N → last N rows (tail); absent: since_id=0",
    "001 stream": "Servers SHOULD stream rows until timeout (or idle), then close; clients reconnect",
    "001 nurls": "Participants MAY expose Notify URLs (NURLs) that peers can POST to",
    "001 surl once": "surl MUST be present exactly once and MUST be a valid STP State URL",
    "001 callbacks": "Additional parameters MAY advertise event-specific callback NURLs",
    "001 event type": "Each key is an event_type token matching [a-z][a-z0-9_]*",
    "001 values": "Each value MUST be a NURL",
    "001 unknown": "Unknown parameters MUST be ignored",
    "001 get": "Notify POSTs are advisory and idempotent; recipients MUST GET surl as the authoritative source",
}
Test = TypeVar("Test", bound=Callable[..., None])


def shows(*sentences: str) -> Callable[[Test], Test]:
    def mark(test: Test) -> Test:
        test.sentences = sentences  # type: ignore[attr-defined]
        return test

    return mark


def test_every_sentence_has_a_test() -> None:
    tests = [value for name, value in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    shown = {sentence for test in tests for sentence in getattr(test, "sentences", ())}
    assert shown == SENTENCES.keys()


# Rows


@shows("000 2 row", "000 2.1 action", "000 2.1 key")
def test_each_row_is_a_tsv_line(client: httpx.Client, table: str) -> None:
    body = "+\tfhir_read\thttps://prov.com/fhir/read\n-\tfhir_read\t\n+\tcafé\tfree form, with spaces\n"
    assert client.post(table, content=body.encode()).status_code == 204
    content = client.get(table, params=NOW).content
    stamp = re.match(rb"1\t(%b)\t" % STAMP, content)
    assert stamp is not None
    changes = body.encode().splitlines()
    assert content == b"".join(b"%d\t%b\t%b\n" % (n, stamp[1], change) for n, change in enumerate(changes, 1))
    # `+` adds or replaces the record of the key it applies to, `-` deletes it
    active = client.get(table, params={"view": "active"}).content
    assert active == b"3\t%b\t%b\n" % (stamp[1], changes[2])


@shows("000 2.1 seqno")
def test_seqnos_are_integers_that_count_the_rows_of_their_table(client: httpx.Client, table: str) -> None:
    other = f"{table}-other"
    client.put(other, headers=SCHEMA)
    for number in range(1, 4):
        assert client.post(table, content=rows(2)).headers["stp-last-seqno"] == str(2 * number)
        assert client.post(other, content=rows(1)).headers["stp-last-seqno"] == str(number)
    assert [line.split(b"\t")[0] for line in client.get(table, params=NOW).content.splitlines()] == [
        b"%d" % seqno for seqno in range(1, 7)
    ]


@shows("000 2.1 timestamp")
def test_timestamps_never_decrease(client: httpx.Client, table: str) -> None:
    for _ in range(5):
        client.post(table, content=rows(2))
    times = [line.split(b"\t")[1] for line in client.get(table, params=NOW).content.splitlines()]
    assert times == sorted(times)
    assert all(re.fullmatch(STAMP, stamp) for stamp in times)


@shows("000 2.1 record", "000 2.1 action")
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"+\ta\tb\n*\ta\tb\n", 2),
        (b"+\ta\tb\n+\ta\tb\n+\ta\tb\tc\n", 3),
        (b"+\t\tb\n", 1),
        (b"+\ta\n", 1),
        (b"1\t2026-01-08T00:00:00Z\t+\ta\tb\n", 1),
        (b"+\ta\t\xff\n", 1),
        (b"+\ta\tb\n\n", 2),
    ],
)
def test_tabs_and_other_actions_are_refused_with_their_line(
    client: httpx.Client, table: str, body: bytes, line: int
) -> None:
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    for more in ({}, producer):
        refused = client.post(table, content=body, headers=more)
        assert (refused.status_code, problem(refused)) == (400, "invalid-change")
        assert refused.json()["detail"].startswith(f"line {line}: ")
    assert client.head(table).headers["stp-last-seqno"] == "0"
    assert client.post(table, content=rows(1), headers=producer).headers["stp-last-seqno"] == "1"


@shows("000 2.2 order", "001 order")
def test_rows_in_strictly_increasing_order(client: httpx.Client, table: str) -> None:
    for number in range(5):
        client.post(table, content=rows(number + 1))
    for query in (NOW, {"idle": "0.1"}, {"since_id": "-7", **NOW}):
        numbers = seqnos(client.get(table, params=query).content)
        assert numbers == list(range(numbers[0], 16))


@pytest.mark.slow
@shows("000 2.2 duplicates", "001 duplicates")
@pytest.mark.parametrize("shell", SHELLS)
def test_clients_ignore_duplicate_rows(shell: str) -> None:
    def repeating(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(1, 1, 2, 1, 2, 3, 3) + lines(*range(1, 5))

    with (
        hostile_server(repeating) as server,
        client_of(shell, server.url, retry=Retry(first_s=0.001, most_s=0.01)) as client,
    ):
        assert [row.seqno for row in client.table(f"{server.url}/t").rows()] == [1, 2, 3, 4]


@pytest.mark.slow
@shows("000 2.2 duplicates", "001 duplicates")
def test_a_mirror_ignores_duplicate_rows() -> None:
    def repeating(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(1, 1, 2, 1, 2, 3, 3) + lines(*range(1, 5))

    with hostile_server(repeating) as remote, headwater("--memory", "--follow", f"copy={remote.url}/t") as server:
        url = f"http://{server.host}:{server.port}/v1/table/copy"
        wait_for(lambda: httpx.get(url, params=NOW).content, lines(1, 2, 3, 4))
        request_count = len(remote.seen)
        wait_until(lambda: len(remote.seen) > request_count + 1)
        assert httpx.get(url, params=NOW).content == lines(1, 2, 3, 4)


# Content type


@shows("000 3 content type", "001 content type")
def test_responses_must_include_the_content_type(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(3))
    for response in (
        client.get(table, params=NOW),
        client.get(table, params={"since_id": "99", **NOW}),
        client.get(table, params={"idle": "0.1"}),
        client.get(table, params={"until_id": "2"}),
        client.head(table),
    ):
        assert (response.status_code, response.headers["content-type"]) == (200, WHOLE_TYPE)


@shows("000 3 last seqno")
def test_servers_may_include_the_last_seqno(client: httpx.Client, table: str) -> None:
    assert client.head(table).headers["stp-last-seqno"] == "0"
    assert client.post(table, content=rows(3)).headers["stp-last-seqno"] == "3"
    for query in ({"since_id": "2", "idle": "0.1"}, {"until_id": "1"}, NOW):
        read = client.get(table, params=query)
        assert (read.headers["stp-last-seqno"], read.headers["stp-gapless"]) == ("3", "true")


# GET


@shows("000 4.1 since", "000 4.1 tail", "000 4.1 absent", "001 since")
def test_delta_sync(client: httpx.Client, table: str) -> None:
    for first in range(1, 13, 3):
        client.post(table, content=rows(3, first))
    everything = list(range(1, 13))
    for since_id, expected in (
        ({}, everything),
        ({"since_id": "0"}, everything),
        ({"since_id": "-0"}, everything),
        ({"since_id": "1"}, everything[1:]),
        ({"since_id": "4"}, everything[4:]),
        ({"since_id": "11"}, [12]),
        ({"since_id": "12"}, []),
        ({"since_id": "9223372036854775807"}, []),
        ({"since_id": "-1"}, [12]),
        ({"since_id": "-5"}, everything[-5:]),
        ({"since_id": "-12"}, everything),
        ({"since_id": "-9223372036854775807"}, everything),
    ):
        read = client.get(table, params={**since_id, **NOW})
        assert (read.status_code, seqnos(read.content)) == (200, expected), since_id
    for bad in ("x", "1.0", "", "9223372036854775808"):
        assert problem(client.get(table, params={"since_id": bad})) == "invalid-query"


@shows("000 4.1 since", "001 since")
def test_a_live_response_has_no_row_up_to_since_id(client: httpx.Client, table: str) -> None:
    """Also if since_id is beyond the end of the table."""
    client.post(table, content=rows(2))
    close = {"stream-closed": "true"}
    with meanwhile(
        client, lambda: client.post(table, content=rows(2)), lambda: client.post(table, content=rows(2), headers=close)
    ):
        read = client.get(table, params={"since_id": "5"})
    assert seqnos(read.content) == [6]


@pytest.mark.slow
@shows("000 6 tailing")
@pytest.mark.parametrize("shell", SHELLS)
def test_clients_may_tail(shell: str) -> None:
    with table_server() as server, client_of(shell, server.url) as client:
        server.put("t", *(f"+ k{number} r" for number in range(9)))
        assert [row.seqno for row in client.table("t").rows(since_id=-3)] == [7, 8, 9]
        assert any("since_id=-3" in request for request in server.requests)


@shows("001 example")
def test_the_example_to_the_byte(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(42))
    body = b"+\tfhir_read\thttps://prov.com/fhir/read\n+\tdirect_message\thttps://prov.com/direct\n"
    client.post(table, content=body)
    read = client.get(table, params={"since_id": "42", **NOW}, headers={"accept": WHOLE_TYPE})
    assert read.headers["content-type"] == WHOLE_TYPE
    shown = (
        rb"43\t(%b)\t\+\tfhir_read\thttps://prov\.com/fhir/read\n44\t\1\t\+\tdirect_message\thttps://prov\.com/direct\n"
    )
    assert re.fullmatch(shown % STAMP, read.content)


@shows("001 example")
@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/sequence; charset=utf-8; schema=endpoint_manifest; version=1", 200),
        ("text/sequence", 200),
        ("*/*", 200),
        ("text/html, */*;q=0.1", 200),
        ("text/sequence; schema=other", 406),
        ("text/sequence; schema=endpoint_manifest; version=2", 406),
        ("application/json", 406),
    ],
)
def test_accept(client: httpx.Client, table: str, accept: str, status: int) -> None:
    for query in (NOW, {"idle": "0.05"}):
        assert client.get(table, params=query, headers={"accept": accept}).status_code == status
    assert client.head(table, headers={"accept": accept}).status_code == status
    assert client.get(table, params={"live": "sse", **NOW}, headers={"accept": "text/html"}).status_code == 406


@shows("000 4.2 stream", "001 stream")
def test_rows_are_streamed_until_idle(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(2))
    appends = [rows(1), rows(2)]  # each is made when the rows before it have arrived
    arrivals: list[list[int]] = []
    with client.stream("GET", table, params={"idle": "2", "timeout": "300"}) as read:
        for piece in read.iter_raw():
            arrivals.append(seqnos(piece))
            if appends:
                assert client.post(table, content=appends.pop(0)).status_code == 204
    assert arrivals == [[1, 2], [3], [4, 5]]  # and the table is open: the response ended because it was idle


@shows("000 4.2 stream", "001 stream")
def test_rows_are_streamed_until_the_timeout(client: httpx.Client, table: str) -> None:
    """Rows are appended until the response has ended, so it is never idle."""
    appended = 1
    client.post(table, content=rows(1))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(client.get, table, params={"timeout": "0.5", "idle": "300"})
        while not reading.done():
            appended += client.post(table, content=rows(1)).status_code == 204
        numbers = seqnos(reading.result().content)
    assert numbers == list(range(1, len(numbers) + 1))
    assert 1 <= len(numbers) <= appended


@shows("000 4.2 reconnect", "001 stream")
def test_clients_reconnect_using_the_last_processed_seqno(client: httpx.Client, table: str) -> None:
    numbers: list[int] = []
    with meanwhile(client, *[lambda: client.post(table, content=rows(2))] * 4):
        while len(numbers) < 8:
            since_id = numbers[-1] if numbers else 0
            numbers += seqnos(client.get(table, params={"since_id": since_id, "timeout": "0.15"}).content)
    assert numbers == list(range(1, 9))


@pytest.mark.slow
@shows("000 4.2 reconnect", "001 stream")
@pytest.mark.parametrize("shell", SHELLS)
def test_our_client_reconnects_using_the_last_seqno_that_it_took(shell: str) -> None:
    """It reads the row with this SeqNo again and compares it, because the table may have been created again."""

    def two_at_a_time(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(*range(max(1, 2 * number), 2 * number + 3))

    with hostile_server(two_at_a_time) as server, client_of(shell, server.url) as client:
        taken = []
        for row in client.table(f"{server.url}/t").follow():
            taken.append(row.seqno)
            if row.seqno == 6:
                break
        since_ids = [re.findall("since_id=([0-9]+)", path)[0] for path in server.seen[:3]]
    assert (taken, since_ids) == ([1, 2, 3, 4, 5, 6], ["0", "1", "3"])


# Notify


@shows("000 5 nurls", "001 nurls")
def test_posts_are_form_encoded(client: httpx.Client, table: str) -> None:
    body = "rows=https://example.com/nurl"
    for content_type in ("application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8"):
        answer = client.post(f"{table}/notify", content=body, headers={"content-type": content_type})
        assert answer.status_code == 204
    for other in ({}, {"content-type": "text/plain"}, {"content-type": "application/json"}):
        refused = client.post(f"{table}/notify", content=body.encode(), headers=other)
        assert (refused.status_code, problem(refused)) == (415, "unsupported-media-type")


@shows("000 5.1 surl optional", "000 5.1 surl once", "000 5.1 surl valid", "001 surl once")
def test_surl_may_be_present_exactly_once(client: httpx.Client, table: str) -> None:
    for body, status in (
        ("surl=https://example.com/state", 410),  # valid, and not followed by a table with rows of its own
        ("surl=https%3A%2F%2Fexample.com%2Fstate&match=https://example.com/m", 204),
    ):
        assert client.post(f"{table}/notify", content=body, headers=FORM).status_code == status
    for body in ("surl=https://a.example/&surl=https://b.example/", "surl=prices", "surl="):
        refused = client.post(f"{table}/notify", content=body, headers=FORM)
        assert (refused.status_code, problem(refused)) == (400, "invalid-notify")


@shows("000 5.1 handshake")
def test_a_handshake_has_no_surl(client: httpx.Client, table: str) -> None:
    advertise(client, table, "https://example.com/manifest_nurl", "manifest_nurl")
    assert advertised(client, table) == [["+", "manifest_nurl", "https://example.com/manifest_nurl"]]


@shows("000 5 nurls", "000 5.1 surl optional", "000 5.1 handshake")
def test_the_examples_of_forms_to_the_byte(client: httpx.Client, table: str) -> None:
    for body in (
        b"surl=https://example.com/state&match=https://example.com/match_nurl",
        b"manifest_nurl=https://example.com/manifest_nurl",
    ):
        answer = client.post(f"{table}/notify", content=body, headers=FORM)
        assert (answer.status_code, answer.content) == (204, b"")
    assert advertised(client, table) == [
        ["+", "match", "https://example.com/match_nurl"],
        ["+", "manifest_nurl", "https://example.com/manifest_nurl"],
    ]


@shows("000 5.1 values", "001 values")
def test_values_must_be_valid_nurls(client: httpx.Client, table: str) -> None:
    for value in ("nonsense", "", "ftp://example.com/", "/relative", "https://", "https://example.com/a b"):
        refused = client.post(f"{table}/notify", content=f"rows={quote(value)}", headers=FORM)
        assert (refused.status_code, problem(refused)) == (400, "invalid-notify"), value
    for value in ("https://10.0.0.1/", "http://example.com/", "https://169.254.169.254/", "https://example.com:22/"):
        refused = client.post(f"{table}/notify", content=f"rows={quote(value)}", headers=FORM)
        assert (refused.status_code, problem(refused)) == (403, "target-refused"), value
    assert client.get(f"{table}/notify", params=NOW).status_code == 404  # nothing was kept


@shows("000 5.1 unknown", "001 unknown", "001 event type")
def test_unknown_names_must_be_ignored(client: httpx.Client, table: str) -> None:
    body = "Rows=https://example.com/a&9=x&a-b=y&=z&&rows_2=https://example.com/b"
    assert client.post(f"{table}/notify", content=body, headers=FORM).status_code == 204
    assert advertised(client, table) == [["+", "rows_2", "https://example.com/b"]]


@shows("000 5.1 repeat", "001 get")
def test_repeats_are_idempotent(client: httpx.Client, table: str) -> None:
    for _ in range(3):
        advertise(client, table, "https://example.com/nurl")
    advertise(client, table, "https://example.com/nurl", "other")
    assert [event for _, event, _ in advertised(client, table)] == ["rows", "other"]


@shows("001 callbacks")
def test_several_event_types(client: httpx.Client, table: str) -> None:
    body = "manifest_notify=https://example.com/m&grant_notify=https://example.com/g"
    assert client.post(f"{table}/notify", content=body, headers=FORM).status_code == 204
    assert [event for _, event, _ in advertised(client, table)] == ["manifest_notify", "grant_notify"]


@shows("000 5 advisory", "001 get")
def test_a_notification_changes_no_table(client: httpx.Client, table: str) -> None:
    client.post(table, content=rows(1))
    before = client.get(table, params=NOW).content
    body = "surl=https://example.com/state&state=https://example.com/99"
    assert client.post(f"{table}/notify", content=body, headers=FORM).status_code == 204
    assert client.get(table, params=NOW).content == before


@pytest.mark.slow
@shows("000 5.1 get", "001 get")
def test_notifications_have_the_surl(client: httpx.Client, table: str) -> None:
    with receiver() as peer:
        client.post(table, content=rows(1))
        advertise(client, table, peer.nurl("/here?token=1"))
        peer.assert_received(0, client)
        client.post(table, content=rows(2))
        (path, content_type, body), *_ = peer.wait(1)
        assert (path, content_type) == ("/here?token=1", FORM["content-type"])
        name, _, surl = body.decode().partition("=")
        assert name == "surl"
        assert "&" not in surl
        assert httpx.get(surl, params=NOW).content == client.get(table, params=NOW).content
        peer.assert_received(1, client)


@pytest.mark.slow
@shows("000 5.1 get", "001 get")
def test_the_server_reads_the_surl_of_a_notification() -> None:
    """A Notify contains the SURL and may be repeated; the rows are read from the SURL."""
    with table_server() as remote:
        remote.put("prices", "+ apples 1.20", "- apples")
        with headwater("--memory", "--allow-follow", f"{remote.url}/v1/table/") as server:
            url = f"http://{server.host}:{server.port}/v1/table/copy"
            form = f"surl={quote(f'{remote.url}/v1/table/prices', safe='')}"
            assert httpx.post(f"{url}/notify", content="surl=https://example.com/", headers=FORM).status_code == 410
            for _ in range(3):
                assert httpx.post(f"{url}/notify", content=form, headers=FORM).status_code == 204
            wait_for(lambda: httpx.get(url, params=NOW).content, b"".join(remote.tables["prices"].rows))
            assert {request.split("&")[0] for request in remote.requests} <= {
                f"GET /v1/table/prices?since_id={since_id}" for since_id in range(3)
            }


# Retention


@pytest.mark.slow
@shows("000 6 retain")
def test_seqnos_continue_after_a_restart(tmp_path: object) -> None:
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        url = f"http://{server.host}:{server.port}/v1/table/kept"
        httpx.put(url, headers=SCHEMA, content=rows(2))
        httpx.post(url, content=rows(3))
        before = httpx.get(url, params=NOW).content
    with headwater("--data-dir", f"{tmp_path}/data") as server:
        url = f"http://{server.host}:{server.port}/v1/table/kept"
        assert httpx.get(url, params=NOW).content == before
        assert httpx.head(url).headers["stp-last-seqno"] == "5"
        assert httpx.post(url, content=rows(1)).headers["stp-last-seqno"] == "6"
        assert seqnos(httpx.get(url, params={"since_id": "-2", **NOW}).content) == [5, 6]


@shows("000 6 document")
def test_the_retention_policy_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "stp.md").read_text()
    _, _, retention = text.partition("\n## Retention\n")
    assert "keeps all its rows until it is deleted or expires" in retention
