"""Tokens that change, headers, and TLS with a private authority and a client certificate."""

from __future__ import annotations

import itertools
import pickle
import ssl
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headwater.client import Client
from headwater.client.fetching import fetch
from headwater.errors import HeadwaterError, NetworkError, OptionError, UnauthorizedError
from headwater.log.content import ContentKind
from headwater.spark.columns import RangeReader
from headwater.spark.options import ReadOptions, read_options, write_options
from headwater.spark.planning import Planner
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Gatherer, place_of
from headwater.spark.tables.columns import SCHEMA as TABLE_SCHEMA
from headwater.spark.tables.options import table_read_options
from headwater.spark.tables.planning import TablePlanner
from headwater.spark.tables.reading import RowRangeReader
from tests.edges import free_port
from tests.gates import Gate, gate
from tests.servers import Server

CERTIFICATES = Path(__file__).parent / "certificates"  # made with openssl for 100 years
CA, CLIENT, KEY = (str(CERTIFICATES / name) for name in ("ca.pem", "client.pem", "client.key"))
VALUES = StructType([StructField("value", StringType())])
_numbers = itertools.count()
token = "first-token"  # what `give_token` returns
call_count = 0


def give_token() -> str:
    global call_count
    call_count += 1
    return token


@pytest.fixture(scope="module")
def path(server: Server) -> str:
    name = f"connection/{next(_numbers)}"
    with Client(server.url) as client:
        client.stream(name).create(messages=[1, 2])
        client.table(name).create()
        client.table(name).append_body(b"+\ta\t1\n+\tb\t2\n")
    return name


@pytest.fixture
def guarded(server: Server) -> Iterator[Gate]:
    """A gate that accepts the first token."""
    with gate(server) as gated:
        gated.tokens = {"first-token"}
        yield gated


@pytest.fixture(scope="module")
def secured(server: Server) -> Iterator[Gate]:
    """A gate that requires a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem")
    context.load_verify_locations(CA)
    context.verify_mode = ssl.CERT_REQUIRED
    with gate(server, context) as gated:
        yield gated


def read(url: str, path: str, **texts: str) -> list[str]:
    """As the driver plans it and, after its options were pickled, as a task reads it."""
    options = read_options({"url": url, "streams": path, "retryTimeout": "1", **texts}, bounded=True, state=False)
    with options.open(patient=False) as client:
        planner = Planner(options, client)
        streams = planner.check()
        ranges = planner.partitions(planner.resolve("earliest", streams), planner.resolve("latest", streams))
    unpickled: ReadOptions = pickle.loads(pickle.dumps(options))
    with unpickled.open() as client:
        reader = RangeReader(unpickled, client, VALUES)
        return [v for part in ranges for one in part for b in reader.read(one) for v in b["value"].to_pylist()]


def read_table(url: str, name: str, **texts: str) -> list[str]:
    texts = {"url": url, "table": name, "retryTimeout": "1", **texts}
    options = table_read_options(texts, bounded=True)
    with options.open(patient=False) as client:
        planner = TablePlanner(options, client)
        tail = planner.tail()
        ranges = planner.partitions(planner.start(tail), planner.end(tail))
        reader = RowRangeReader(options, client, options.table, TABLE_SCHEMA)
        return [v for one in ranges for b in reader.read(one) for v in b["key"].to_pylist()]


def write(url: str, path: str, batch: int, **texts: str) -> None:
    options = write_options({"url": url, "retryTimeout": "1", **texts})
    with options.open() as client:
        gatherer = Gatherer(client, ContentKind.JSON, 1000, place_of(path, batch, 0))
        gatherer.add(path, pa.array([b"%d" % batch], pa.binary()))
        Publisher(client, options, path.replace("/", "-")).publish(batch, [gatherer.finish()])


def by_file(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "new").write_text(text)
    (tmp_path / "new").rename(tmp_path / "token")  # as what rotates tokens does it
    return {"tokenFile": str(tmp_path / "token")}


def test_a_token_file_that_changes(guarded: Gate, server: Server, path: str, tmp_path: Path) -> None:
    options = read_options({"url": guarded.url, "streams": path, **by_file(tmp_path, "first-token\n")}, bounded=False)
    with options.open() as client:  # as long as a query runs
        planner = Planner(options, client)
        assert list(planner.tails()) == [path]
        by_file(tmp_path, "second-token\n")
        guarded.tokens = {"second-token"}
        assert list(planner.tails()) == [path]
        assert guarded.refused == 1
    texts = by_file(tmp_path, "second-token")
    assert read(guarded.url, path, **texts) == ["1", "2"]
    assert read_table(guarded.url, path, **texts) == ["a", "b"]
    write(guarded.url, f"{path}/written", 0, **texts)
    assert guarded.refused == 1  # others read the file as it is
    guarded.tokens = {"third-token"}
    with pytest.raises(UnauthorizedError):
        read(guarded.url, path, **texts)
    by_file(tmp_path, "third-token")
    assert read(guarded.url, path, **texts) == ["1", "2"]


def test_the_token_function_is_called_again_when_its_token_was_refused(guarded: Gate, path: str) -> None:
    global token, call_count
    texts = {"tokenFunction": f"{__name__}:give_token"}
    assert read(guarded.url, path, **texts) == read(guarded.url, path, **texts) == ["1", "2"]
    assert call_count == 1
    token = "second-token"
    guarded.tokens = {token}
    assert read(guarded.url, path, **texts) == ["1", "2"]
    assert read_table(guarded.url, path, **texts) == ["a", "b"]
    assert call_count == 2


@pytest.mark.parametrize(
    "texts",
    [
        {"headers": '{"X-Api-Key": "s3cr3t", "x-tenant": "a"}'},
        {"header.X-Api-Key": "s3cr3t", "header.X-TENANT": "a"},
        {"headers": '{"X-Api-Key": "other"}', "header.x-api-key": "s3cr3t", "header.X-Tenant": "a"},
    ],
)
def test_headers_are_sent_with_every_request(server: Server, path: str, texts: dict[str, str]) -> None:
    with gate(server) as gated:
        assert read(gated.url, path, **texts) == ["1", "2"]
        assert read_table(gated.url, path, **texts) == ["a", "b"]
        write(gated.url, f"{path}/{next(_numbers)}", 0, **texts)
        assert len(gated.seen) > 10
        assert all((one.get("x-api-key"), one.get("x-tenant")) == ("s3cr3t", "a") for one in gated.seen)


def test_an_authorization_header_of_another_scheme(server: Server, path: str) -> None:
    with gate(server) as gated:
        read(gated.url, path, **{"header.Authorization": "Basic abc"})
        assert all(one["authorization"] == "Basic abc" for one in gated.seen)


def test_tls_with_an_authority_and_a_certificate(secured: Gate, path: str) -> None:
    texts = {"caFile": CA, "clientCertificate": CLIENT, "clientKey": KEY}
    secured.seen.clear()
    assert read(secured.url, path, **texts) == ["1", "2"]
    assert "accept-encoding" not in secured.seen[-1]  # the last one came over the connection of `fetching`
    assert read_table(secured.url, path, **texts) == ["a", "b"]
    write(secured.url, f"{path}/{next(_numbers)}", 0, **texts)
    options = read_options({"url": secured.url, "streams": path, **texts}, bounded=True)
    with options.open() as client:
        [answer] = fetch(options, client.stream(path).url, "-1", client.stream(path).head().tail_offset)
    assert answer[0] == b"[1,2]"


@pytest.mark.parametrize("texts", [{}, {"caFile": CA}, {"clientCertificate": CLIENT, "clientKey": KEY}])
def test_tls_without_the_needed_certificates(secured: Gate, path: str, texts: dict[str, str]) -> None:
    with pytest.raises(NetworkError):
        read(secured.url, path, **texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"token": "a", "tokenFile": "b"}, "set only one of"),
        ({"tokenFile": "b", "tokenFunction": "a:b"}, "set only one of"),
        ({"token": "s3cr3t", "header.authorization": "s3cr3t"}, "set only one of"),
        ({"token": "s3cr3t\nx: y"}, "printable ASCII"),
        ({"tokenFunction": "s3cr3t"}, "module:function"),
        ({"headers": "s3cr3t"}, "headers must be JSON"),
        ({"headers": '{"a": "s3cr3t\\r\\nb: c"}'}, "the header a must be printable ASCII"),
        ({"header.a b": "s3cr3t"}, "the header 'a b' cannot be set"),
        ({"header.Content-Length": "1"}, "the header 'content-length' cannot be set"),
        ({"clientKey": KEY}, "clientKey needs clientCertificate"),
        ({"clientCertificate": CLIENT}, "need a url with https"),
        ({"tokenfiles": "x"}, "did you mean tokenFile?"),
    ],
)
def test_invalid_connection_options(texts: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({"url": "http://127.0.0.1:1", "streams": "a", **texts}, bounded=True)
    assert message in str(caught.value)
    assert "s3cr3t" not in str(caught.value) or "tokenFunction" in texts


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"tokenFile": "missing"}, "tokenFile missing cannot be read"),
        ({"tokenFile": __file__}, "must contain one token"),
        ({"tokenFunction": "headwater.nothing:f"}, "cannot be imported here"),
        ({"tokenFunction": "os:getpid"}, "must return a token"),
        ({"caFile": "missing"}, "missing cannot be used"),
        ({"caFile": KEY}, "cannot be used"),
        ({"clientCertificate": CLIENT, "clientKey": str(CERTIFICATES / "encrypted.key")}, "cannot be used"),
    ],
)
def test_missing_files_and_functions(path: str, texts: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read("https://127.0.0.1:1", path, **texts)


def test_secrets_are_not_shown(guarded: Gate, path: str) -> None:
    options = read_options({"url": guarded.url, "streams": path, "header.x-key": "s3cr3t"}, bounded=True)
    assert "s3cr3t" not in f"{options!r} {options} {options!r}"
    for texts in ({"token": "s3cr3t"}, {"header.authorization": "s3cr3t"}):
        with pytest.raises(HeadwaterError) as caught:
            read(guarded.url, path, **texts)
        assert "s3cr3t" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"


def test_targets_are_created_with_a_lifetime(server: Server) -> None:
    with Client(server.url) as client:
        for batch, (name, value) in enumerate((("targetTtl", "3600"), ("targetExpiresAt", "2099-01-31T00:00:00Z"))):
            target = f"connection/{next(_numbers)}"
            write(server.url, target, batch, **{name: value})
            write(server.url, target, batch + 1, **{name: value})
            made = client.stream(target).head()
            assert (made.ttl_seconds, str(made.expires_at)[:10]) == (
                (3600, "None") if batch == 0 else (None, "2099-01-31")
            )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"targetTtl": "60", "targetExpiresAt": "2099-01-31T00:00:00Z"}, "set either targetTtl"),
        ({"targetTtl": "60", "createTarget": "false"}, "createTarget is false"),
        ({"targetExpiresAt": "tomorrow"}, "an example is 2027-01-31"),
        ({"targetTtl": "0"}, "above 0"),
    ],
)
def test_invalid_lifetimes(texts: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        write_options({"url": "http://127.0.0.1:1", "stream": "a", **texts})


@pytest.mark.parametrize(("patient", "logged"), [(True, ["attempt 1 failed,", "attempt 2 failed,"]), (False, [])])
def test_retries_are_logged_unless_there_are_few(
    caplog: pytest.LogCaptureFixture, patient: bool, logged: list[str]
) -> None:
    texts = {"url": f"http://127.0.0.1:{free_port()}", "streams": "a", "retryTimeout": "1"}
    options = read_options(texts, bounded=True)
    with options.open(patient=patient) as client, pytest.raises(NetworkError):
        client.stream("a").head()
    messages = [record.getMessage() for record in caplog.records if record.name == "headwater.spark.connection"]
    assert [text[:17] for text in messages[:2]] == logged
