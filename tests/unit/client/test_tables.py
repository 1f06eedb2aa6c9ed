"""Tables over both shells: write, read and follow; and servers that do what they must not."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from headwater import errors, limits
from headwater.client import Client, Escape, ProducerTuple, Put, Remove, Report, Retry, TableType, Timeouts
from tests.shells import SHELLS, client_of
from tests.table_servers import TableServer, head, hostile_server, lines, table_server
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow  # servers, and time-outs that pass

QUICK = Retry(first_s=0.001, most_s=0.01)


@pytest.fixture
def server() -> Iterator[TableServer]:
    with table_server() as running:
        yield running


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, server: TableServer) -> Iterator[Client]:
    with client_of(request.param, server.url, retry=QUICK) as made:
        yield made


def test_a_table_from_create_to_delete(client: Client, server: TableServer) -> None:
    table = client.table("prices")
    assert table.create(schema="price", version=2) is True
    assert table.create(schema="price", version=2) is False
    with pytest.raises(errors.ConflictError):
        client.table("prices").create(schema="price", version=3)
    done = table.append([Put("tea", "2.40"), Put("coffee", "3.10"), ("+", "milk", "")])
    assert (done.last_seqno, done.duplicate) == (3, False)
    assert table.append([Remove("coffee"), Put("tea", "2.50")]).last_seqno == 5
    assert [(row.seqno, row.action, row.key, row.record) for row in table.rows()] == [
        (1, "+", "tea", "2.40"),
        (2, "+", "coffee", "3.10"),
        (3, "+", "milk", ""),
        (4, "-", "coffee", ""),
        (5, "+", "tea", "2.50"),
    ]
    assert [row.seqno for row in table.rows(since_id=1, until_id=3)] == [2, 3]
    assert [row.seqno for row in table.rows(since_id=-2)] == [4, 5]
    assert table.rows(since_id=99).all() == []
    assert {key: row.record for key, row in table.active().items()} == {"milk": "", "tea": "2.50"}
    tea = table.get("tea")
    assert tea is not None
    assert tea.seqno == 5
    assert table.get("coffee") is None
    info = table.info()
    assert (info.name, info.schema, info.version, info.last_seqno, info.gapless) == ("prices", "price", 2, 5, True)
    assert [(one.name, one.last_seqno) for one in client.tables("pri")] == [("prices", 5)]
    table.delete()
    with pytest.raises(errors.StreamNotFoundError):
        table.info()


def test_the_list_comes_in_pages(client: Client, server: TableServer) -> None:
    for number in range(5):
        server.put(f"t{number}", "+ k r")
    assert [one.name for one in client.tables(page_size=2)] == [f"t{number}" for number in range(5)]


def test_escaped_tables_take_and_give_any_text(client: Client, server: TableServer) -> None:
    table = client.table("notes")
    table.create(escape=Escape.BACKSLASH)
    table.append([Put("a\tb", "two\nlines \\ and a backslash")])
    [row] = table.rows()
    assert (row.key, row.record) == ("a\tb", "two\nlines \\ and a backslash")
    assert table.get("a\tb") == row
    server.put("notes", "+ c d")
    with client.table("notes").follow(last_row=row) as reader:
        assert next(iter(reader)).key == "c"
    plain = client.table("plain")
    plain.create()
    with pytest.raises(errors.InvalidChangeError, match="line 2"):
        plain.append([Put("a", "b"), Put("a", "tab\t")])
    assert plain.rows().all() == []


def test_an_append_with_a_producer_is_stored_once(client: Client, server: TableServer) -> None:
    table = client.table("prices")
    table.create()
    server.lose = 1
    assert table.append([Put("a", "1")], producer=ProducerTuple("p", 0, 0)).duplicate is True
    server.lose = 1
    with pytest.raises(errors.NetworkError):
        table.append([Put("b", "1")])  # it may have been stored, so it is not repeated
    server.lose = 2
    assert table.append_all([Put(f"k{number}", "r") for number in range(100)], batch_bytes=200).last_seqno == 102
    assert [row.seqno for row in table.rows()] == [*range(1, 103)]
    assert table.append_all([]).last_seqno == 102


def test_following_until_the_table_is_closed(client: Client, server: TableServer) -> None:
    server.put("prices", "+ a 1", "+ b 2")
    table = client.table("prices")
    taken = []

    def write() -> None:
        for number in range(20):
            server.put("prices", f"+ k{number} r")
        with Client(server.url) as other:
            other.table("prices").close()

    reader = table.follow()
    writer = threading.Thread(target=write)
    for row in reader:
        taken.append(row.seqno)
        if row.seqno == 2:
            writer.start()
    writer.join()
    assert taken == [*range(1, 23)]
    assert reader.seqno == 22
    assert reader.last_seqno == 22


def test_closing_a_follower_that_waits(client: Client, server: TableServer) -> None:
    server.put("prices", "+ a 1")
    reader = client.table("prices").follow()
    iterator = iter(reader)
    assert next(iterator).key == "a"
    threading.Timer(0.05, reader.close).start()
    assert list(iterator) == []


def test_token_and_headers_go_to_the_clients_own_server_only(server: TableServer) -> None:
    server.put("prices", "+ a 1")
    for root in (server.url, "http://127.0.0.1:1"):
        for shell in SHELLS:
            with client_of(shell, root, token="secret", headers={"x-api-key": "secret"}) as client:
                assert len(client.table(f"{server.url}/v1/table/prices").rows().all()) == 1
    secrets = ["secret" in str(seen) for seen in server.headers_seen]
    assert secrets == [True, True, False, False]


def test_names_and_surls() -> None:
    with Client("http://host:1/base/v1/stream") as client:
        assert client.table("a b/c").url == "http://host:1/base/v1/table/a%20b/c"
        assert client.table("https://other/t?x=1").url == "https://other/t?x=1"
        for name in ("", "https://user@other/t", "https://other/#t", "http://"):
            with pytest.raises(ValueError, match=r"SURL|empty"):
                client.table(name)
        with pytest.raises(errors.InvalidPathError):
            client.table("prices/notify")
    with Client("http://host:1") as client:
        assert client.table("prices").url == "http://host:1/v1/table/prices"


def test_what_is_no_change() -> None:
    with Client("http://host:1") as client:
        table = client.table("t", table_type=TableType())
        with pytest.raises(TypeError, match="a change is"):
            table.append([("+", "key")])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="are texts"):  # it would be stored as the repr of the dict
            table.append([Put("key", {"eur": 1})])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="are texts"):
            table.append_all([("+", 7, "record")])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="nothing to append"):
            table.append([])


# Hostile servers. Each script is told the number of the request and its path, and gives the whole answer.


def since_of(path: str) -> int:
    return int(parse_qs(urlsplit(path).query)["since_id"][0])


def honest_from(path: str, last: int = 6) -> bytes:
    return head(STP_Gapless="true", STP_Last_SeqNo=str(last)) + lines(*range(since_of(path) + 1, last + 1))


LONG = lines(1, 2) * 20_000  # repeats, so that the rows after them arrive in another piece


def out_of_order(number: int, path: str) -> Iterator[bytes]:
    yield head() + lines(1, 2, 4) + LONG + lines(3, 5)


def out_of_order_gapless(number: int, path: str) -> Iterator[bytes]:
    yield head(STP_Gapless="true") + lines(1, 2, 4) + LONG + lines(3, 5)


def missing(number: int, path: str) -> Iterator[bytes]:
    yield head(STP_Gapless="true") + lines(1, 2, 4, 5, 6)


def missing_once(number: int, path: str) -> Iterator[bytes]:
    yield head(STP_Gapless="true") + lines(1, 2, 4) if not number else honest_from(path)


def repeated(number: int, path: str) -> Iterator[bytes]:
    yield head() + lines(1, 1, 2, 1, 2, 3, *range(1, min(6, number + 3) + 1))


def truncated(number: int, path: str) -> Iterator[bytes]:
    whole = lines(*range(since_of(path) + 1, 7))
    yield head(STP_Gapless="true") + whole[:100]  # two rows and a part of the third


def truncated_by_length(number: int, path: str) -> Iterator[bytes]:
    whole = lines(*range(since_of(path) + 1, 7))
    sent = whole[:60] if number < 3 else whole
    yield head(Content_Length=str(len(whole))) + sent


def truncated_always(number: int, path: str) -> Iterator[bytes]:
    yield head() + lines(1, 2) + b"3\t2026"


def wrong_type(number: int, path: str) -> Iterator[bytes]:
    yield head(content_type="text/html") + b"<p>Please log in</p>"


def schema_changes(number: int, path: str) -> Iterator[bytes]:
    version = f"text/sequence; charset=utf-8; schema=text; version={number + 1}"
    yield head(content_type=version) + lines(1, 2) + lines(3)[:5]


def endless_line(number: int, path: str) -> Iterator[bytes]:
    yield head() + lines(1)
    yield b"2\t2026-01-08T00:00:00Z\t+\tk\t"
    yield from itertools.repeat(b"x" * 65_536)


def endless_body(number: int, path: str) -> Iterator[bytes]:
    yield head()
    yield from itertools.repeat(lines(1, record="r" * 500_000))


BOMB = gzip.compress(lines(1) + b"2\t2026-01-08T00:00:00Z\t+\tk\t" + b"x" * 100_000_000)


def bomb(number: int, path: str) -> Iterator[bytes]:
    yield head(Content_Encoding="gzip") + BOMB


def bomb_in_an_error(number: int, path: str) -> Iterator[bytes]:
    yield head("403 Forbidden", "application/problem+json", Content_Encoding="gzip") + BOMB


def unasked_encoding(number: int, path: str) -> Iterator[bytes]:
    yield head(Content_Encoding="br") + b"\x00" * 100


def redirect(number: int, path: str) -> Iterator[bytes]:
    yield head("302 Found", Location="http://169.254.169.254/latest/meta-data")


def restarts(number: int, path: str) -> Iterator[bytes]:
    yield head(STP_Last_SeqNo="3") + lines(1, 2, 3) if not number else head(STP_Last_SeqNo="1")


def changes_history(number: int, path: str) -> Iterator[bytes]:
    yield head() + (lines(1, 2, 3) + b"4\t" if not number else lines(3, record="other") + lines(4))


def no_row_at_all(number: int, path: str) -> Iterator[bytes]:
    yield head() + lines(1) + b"\n\nno row\n"


def bad_last_seqno(number: int, path: str) -> Iterator[bytes]:
    yield head(STP_Last_SeqNo="many") + lines(1)


def nothing_but_garbage(number: int, path: str) -> Iterator[bytes]:
    yield b"\x00\x01 not HTTP\r\n\r\n"


FAULTS: list[tuple[Callable[[int, str], Iterator[bytes]], type[errors.HeadwaterError], list[int]]] = [
    (out_of_order, errors.RowOrderError, [1, 2, 4]),
    (out_of_order_gapless, errors.MissingRowError, [1, 2]),
    (missing, errors.MissingRowError, [1, 2]),
    (truncated_always, errors.InvalidRowError, [1, 2]),
    (wrong_type, errors.ProtocolError, []),
    (schema_changes, errors.SchemaChangedError, [1, 2]),
    (endless_line, errors.InvalidRowError, [1]),
    (endless_body, errors.ProtocolError, [1]),
    (bomb, errors.InvalidRowError, [1]),
    (bomb_in_an_error, errors.ForbiddenError, []),
    (unasked_encoding, errors.ProtocolError, []),
    (redirect, errors.RedirectError, []),
    (restarts, errors.HistoryChangedError, [1, 2, 3]),
    (changes_history, errors.HistoryChangedError, [1, 2, 3]),
    (no_row_at_all, errors.InvalidRowError, [1]),
    (bad_last_seqno, errors.ProtocolError, []),
    (nothing_but_garbage, errors.NetworkError, []),
]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("script", "error", "expected"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_hostile_server_ends_in_a_clear_error(
    shell: str, script: Callable[[int, str], Iterator[bytes]], error: type[errors.HeadwaterError], expected: list[int]
) -> None:
    taken: list[int] = []
    reports: list[Report] = []
    with (
        hostile_server(script) as server,
        client_of(shell, "http://127.0.0.1:1", retry=QUICK, on_error=reports.append) as client,
    ):
        reader = client.table(server.url).follow()
        with pytest.raises(error) as caught:
            taken.extend(row.seqno for row in reader)
        report_count = len(reports)
        with pytest.raises(error):  # it does not look like the end of the table to whoever goes on
            next(iter(reader))
    assert taken == expected
    assert server.url in str(caught.value)
    assert caught.value.retryable is (error is errors.NetworkError)
    assert report_count < 10
    assert max(server.sent_bytes) < limits.FOLLOW_REPEATED_BYTES_MAX + 20_000_000  # of an answer without end


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", [missing_once, repeated, truncated, truncated_by_length], ids=lambda s: s.__name__)
def test_what_can_be_mended_is(shell: str, script: Callable[[int, str], Iterator[bytes]]) -> None:
    taken = []
    with hostile_server(script) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        for row in client.table(server.url).follow():
            taken.append(row.seqno)
            if row.seqno == 6:
                break
    assert taken == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_snapshot_of_a_server_that_knows_only_the_specification(shell: str) -> None:
    """No STP-Last-SeqNo, no timeout=0, no views: the whole table at every request."""

    def plain(number: int, path: str) -> Iterator[bytes]:
        deleted = b"4\t2026-01-08T00:00:00Z\t-\tk2\t\n"
        yield head() + lines(1, 2, 3) + deleted

    with hostile_server(plain) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        table = client.table(f"{server.url}/t?tenant=7")
        assert [row.seqno for row in table.rows(since_id=1)] == [2, 3, 4]
        assert [*table.active()] == ["k1", "k3"]
        assert table.get("k2") is None
        assert table.get("k3") is not None
        assert server.seen[0] == "/t?since_id=1&tenant=7&timeout=0"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_view_is_read_anew_after_a_failure(shell: str) -> None:
    def cut(number: int, path: str) -> Iterator[bytes]:
        assert since_of(path) == 0
        rows = lines(1, 2, 3) if number < 2 else lines(3, 4)
        yield head(Content_Length=str(len(rows))) + (rows[:-10] if number < 2 else rows)

    with hostile_server(cut) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        assert [*client.table(server.url).active()] == ["k3", "k4"]


@pytest.mark.parametrize("shell", SHELLS)
def test_silence_is_not_the_end_of_an_answer_that_is_not_held_open(shell: str) -> None:
    read = threading.Event()

    def stalled(number: int, path: str) -> Iterator[bytes]:
        if "view=active" in path:
            assert since_of(path) == 0  # the rest of a later view would not fit
        rows = lines(*range(since_of(path) + 1, 4))
        yield head(STP_Last_SeqNo="3", Content_Length=str(len(rows))) + (b"" if number % 2 else rows)
        read.wait(LIMIT_S)

    times = Timeouts(long_poll_s=0.2)
    with (
        hostile_server(stalled) as server,
        client_of(shell, "http://127.0.0.1:1", retry=QUICK, timeouts=times) as client,
    ):
        for _ in range(2):
            assert [row.seqno for row in client.table(server.url).rows()] == [1, 2, 3]
            assert [*client.table(server.url).active()] == ["k1", "k2", "k3"]
        read.set()


@pytest.mark.parametrize("shell", SHELLS)
def test_rows_that_a_table_was_to_have_are_not_left_out_silently(shell: str) -> None:
    def lacking(number: int, path: str) -> Iterator[bytes]:
        yield head(STP_Last_SeqNo="3", STP_Gapless="true") + lines(*range(since_of(path) + 1, 3))

    with hostile_server(lacking) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        reader = client.table(server.url).rows()
        with pytest.raises(errors.MissingRowError, match="rows up to 3, but the table ends after row 2"):
            reader.all()
        assert reader.seqno == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_compressed_answers(shell: str) -> None:
    def compressed(number: int, path: str) -> Iterator[bytes]:
        yield head(Content_Encoding="gzip", STP_Last_SeqNo="3") + gzip.compress(lines(1, 2, 3))

    with hostile_server(compressed) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        assert [row.seqno for row in client.table(server.url).rows()] == [1, 2, 3]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_type_that_is_asked_for(shell: str) -> None:
    def other(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(1)

    with hostile_server(other) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        with pytest.raises(errors.SchemaChangedError):
            client.table(server.url, table_type=TableType("price", 1)).rows().all()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("announced", [True, False])
def test_the_rows_of_a_response_may_come_in_any_order(shell: str, announced: bool) -> None:
    def shuffled(number: int, path: str) -> Iterator[bytes]:
        yield head(**({"STP_Last_SeqNo": "9"} if announced else {}))
        yield lines(9, 1)
        yield lines(9) * 30_000  # so that the rest arrives in another piece
        yield lines(4, 2)

    with hostile_server(shuffled) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        table = client.table(server.url)
        assert [row.seqno for row in table.rows()] == [1, 2, 4, 9]
        assert list(table.active()) == ["k1", "k2", "k4", "k9"]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_the_reference_parser_of_stp_accepts_is_accepted(shell: str) -> None:
    """A delete without its empty record, empty lines, and a server that only knows GET."""

    def answer(number: int, path: str) -> Iterator[bytes]:  # HEAD gets 501
        yield head(STP_Last_SeqNo="3") + lines(1) + b"\n2\t2026-01-08T00:00:00Z\t-\tk1\n\n" + lines(3) + b"\n"

    with hostile_server(answer) as server, client_of(shell, "http://127.0.0.1:1", retry=QUICK) as client:
        table = client.table(server.url)
        assert table.info().last_seqno == 3
        assert [(row.seqno, row.action, row.record) for row in table.rows()] == [
            (1, "+", "r"),
            (2, "-", ""),
            (3, "+", "r"),
        ]
        assert list(table.active()) == ["k3"]


@pytest.mark.parametrize(
    ("url", "table"),
    [
        ("http://h", "http://h/v1/table/t"),
        ("http://h/app", "http://h/app/v1/table/t"),
        ("http://h/app/", "http://h/app/v1/table/t"),
        ("http://h/app/v1/stream", "http://h/app/v1/table/t"),
        ("http://h/v1/stream/", "http://h/v1/table/t"),
    ],
)
def test_the_path_of_the_client_is_part_of_the_url_of_a_table(url: str, table: str) -> None:
    with Client(url) as client:
        assert client.table("t").url == table
