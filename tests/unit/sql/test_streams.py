"""Streams as tables of SQL: names, columns, types, ranges, and what goes wrong in between."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headwater.client import Client
from headwater.errors import (
    ForbiddenError,
    HeadwaterError,
    InvalidOffsetError,
    OffsetTrimmedError,
    SqlDataError,
    SqlError,
)
from headwater.server.auth.editing import add_token
from headwater.sql import SqlSession
from tests.edges import memory_server
from tests.unit.sql.conftest import Ask

LARGE = 2**53 + 1
HUGE = 2**70 + 1
TOO_LARGE = 10**50 + 1


def test_fields_are_typed_columns(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(
        messages=[
            {"n": LARGE, "x": 1, "ok": True, "text": "a", "tree": {"deep": [1]}, "huge": HUGE, "none": None},
            {"n": -1, "x": 0.5, "more": "2026-01-08"},
        ]
    )
    types = dict(ask(f"SELECT column_name, column_type FROM (DESCRIBE FROM '{prefix}')"))
    assert types == {
        "n": "BIGINT",
        "x": "DOUBLE",
        "ok": "BOOLEAN",
        "text": "VARCHAR",
        "tree": "JSON",
        "huge": "HUGEINT",
        "none": "JSON",
        "more": "VARCHAR",
    }
    assert ask(f"SELECT n, x, huge::VARCHAR, tree->>'$.deep[0]', more::DATE::VARCHAR FROM '{prefix}' ORDER BY n") == [
        (-1, 0.5, None, None, "2026-01-08"),
        (LARGE, 1.0, str(HUGE), "1", None),
    ]
    assert ask(f"SELECT count(*) FROM '{prefix}'") == [2]


def test_numbers_that_no_type_holds_are_text(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"n": TOO_LARGE, "mixed": "a"}, {"n": 1, "mixed": 5}])
    assert ask(f"SELECT n, mixed FROM '{prefix}'") == [(str(TOO_LARGE), "a"), ("1", "5")]


def test_a_number_that_is_too_large_for_a_float(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    stream.append_body(b'[{"n":1e400},{"n":-0.5}]')
    assert ask(f"SELECT n FROM '{prefix}'") == ["1e400", "-0.5"]
    event = b'{"type":"o","key":"k","value":{"n":1e400},"headers":{"operation":"upsert"}}'
    client.stream(f"{prefix}-state").create()
    client.stream(f"{prefix}-state").append_body(event)
    assert ask(f"SELECT n FROM state('{prefix}-state', 'o')") == ["1e400"]


def test_a_message_of_16_mebibytes() -> None:
    with memory_server("--limit", "body_bytes_max=20000000") as server, Client(server.url) as client:
        stream = client.stream("large")
        stream.create()
        stream.append_body(b'[{"n":1,"pad":"' + b"x" * (1 << 24) + b'"},{"n":2}]')
        with SqlSession(client) as session:
            table = session.query("SELECT n, length(pad) AS length FROM large").arrow()
            assert table.to_pydict() == {"n": [1, 2], "length": [1 << 24, None]}
            table = session.query("SELECT sum(length(_value))::BIGINT AS length FROM large").arrow()
            assert table.to_pydict() == {"length": [(1 << 24) + 23]}


@pytest.mark.parametrize(
    ("first", "later", "wording"),
    [
        (1, 1.5, "the field n is BIGINT in the sample, and a message has 1.5"),
        (1, 2**63, f"a message has {2**63}"),
        (1, "many", "a message has many"),
        (1, {"a": 1}, 'a message has {"a":1}'),
        (1.5, "x", "the field n is DOUBLE in the sample, and a message has x"),
        (1, 1e-5, "a message has 1e-05"),
        (1, "007", "a message has 007"),
        (1, "0x1F", "a message has 0x1F"),
        (1, "1_000", "a message has 1_000"),
        (HUGE, 10**38, f"the field n is HUGEINT in the sample, and a message has {10**38}"),
        (1.5, "nan", "a message has nan"),
        (1.5, "1_000", "a message has 1_000"),
        (1.5, "007", "a message has 007"),
        (1.5, "-00.5", "a message has -00.5"),
        (True, "maybe", "the field n is BOOLEAN in the sample"),
        (True, "yes", "a message has yes"),
        (True, 1, "a message has 1"),
    ],
)
def test_a_later_message_of_another_type_is_an_error(
    client: Client, ask: Ask, prefix: str, first: object, later: object, wording: str
) -> None:
    stream = client.stream(prefix)
    stream.create(messages=[{"n": first}] * 1000)
    stream.append({"n": later})
    with pytest.raises(SqlDataError) as raised:
        ask(f"SELECT max(n) FROM '{prefix}'")
    assert wording in str(raised.value)
    assert "types := '\"n\" VARCHAR'" in str(raised.value)
    assert ask(f"SELECT count(*) FROM '{prefix}'") == [1001]
    assert len(ask(f"SELECT DISTINCT n FROM stream('{prefix}', types := 'n VARCHAR')")) == 2


def test_a_later_number_that_is_too_large_for_a_float(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create(messages=[{"n": 1.5}] * 1000)
    stream.append_body(b'[{"n":1e400}]')
    with pytest.raises(SqlDataError, match="the field n is DOUBLE in the sample, and a message has 1e400"):
        ask(f"SELECT max(n) FROM '{prefix}'")


def test_numbers_of_39_digits_are_text(client: Client, ask: Ask, prefix: str) -> None:
    """Arrow and Parquet have 38 digits."""
    client.stream(prefix).create(messages=[{"n": 10**38, "most": 10**38 - 1, "least": 1 - 10**38}])
    assert ask(f"SELECT n, most::VARCHAR, least::VARCHAR, typeof(most) FROM '{prefix}'") == [
        (str(10**38), str(10**38 - 1), str(1 - 10**38), "HUGEINT")
    ]


def test_types_that_are_given_are_those_of_casts(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"n": "007", "x": "1_000", "ok": "yes"}])
    types = "n BIGINT, x DOUBLE, ok BOOLEAN"
    assert ask(f"SELECT n, x, ok FROM stream('{prefix}', types := '{types}')") == [(7, 1000.0, True)]
    client.stream(prefix).append({"n": 1e-5})
    with pytest.raises(SqlDataError, match="a message has 1e-05"):
        ask(f"SELECT n FROM stream('{prefix}', types := '{types}')")


def test_whole_numbers_may_be_written_as_decimals(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create(messages=[{"n": 1}] * 1000)
    stream.append_body(b'[{"n": 2.0}, {"n": 1e3}, {"n": null}, {}, 7, [1], "text", null]')
    assert ask(f"SELECT n FROM '{prefix}' OFFSET 1000") == [2, 1000, None, None, None, None, None, None]


def test_types_can_be_given(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"moment": "2026-01-08T00:00:00Z", "tree": {"a": 1, "b": [1, 2]}}])
    types = "moment TIMESTAMPTZ, tree STRUCT(b BIGINT[]), late DOUBLE"
    query = f"SELECT moment, tree.b, late FROM stream('{prefix}', types := '{types}')"
    assert ask(query) == [(datetime(2026, 1, 8, tzinfo=UTC), [1, 2], None)]
    for wrong in ("n NOTHING", "n", "1); DROP"):
        with pytest.raises(SqlError, match="types are names and types"):
            ask(f"FROM stream('{prefix}', types := '{wrong}')")


def test_fields_that_differ_by_case_or_look_like_sql(client: Client, ask: Ask, prefix: str) -> None:
    message = {"id": 1, "ID": 2, "Id": 3, 'a"b': 4, "c'd": 5, "select": 6, "e.f": 7, "$.x": 8, "körper": 9, "": 10}
    client.stream(prefix).create(messages=[message])
    columns = 'id, "ID_1", "Id_2", "a""b", "c\'d", "select", "e.f", "$.x", "körper"'
    assert ask(f"SELECT {columns} FROM '{prefix}'") == [tuple(range(1, 10))]
    assert ask(f"SELECT * FROM '{prefix}'") == [tuple(range(1, 10))]


def test_too_many_fields(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{f"id-{n}-{m}": m for m in range(500)} | {"n": n} for n in range(5)])
    with pytest.raises(SqlError, match="has 2,501 fields; name those that you need"):
        ask(f"SELECT * FROM '{prefix}'")
    assert ask(f"""SELECT sum(n), max("id-1-7"), max((_value->>'id-2-8')::INT) FROM '{prefix}'""") == [(10, 7, 8)]


def test_names_that_sql_cannot_have(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create()
    client.stream(prefix).append_body(b'{"": 1, "a\\u0000b": 2, "c": 3}')
    assert ask(f"SELECT * FROM '{prefix}'") == [3]


def test_hidden_columns(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    stream.append_body(b'[{"n": 1.50}, {"n":2}]')
    stream.append({"n": 3})
    first, second = stream.records()
    rows = ask(f"SELECT _stream, _offset, _time, _value, n FROM '{prefix}'")
    assert rows == [
        (prefix, first.offset, first.time, '{"n": 1.50}', 1.5),
        (prefix, first.offset, first.time, '{"n":2}', 2),
        (prefix, second.offset, second.time, '{"n":3}', 3),
    ]
    assert ask(f"SELECT n FROM '{prefix}' WHERE _offset > '{first.offset}'") == [3]
    assert ask(f"SELECT * FROM '{prefix}'") == [1.5, 2, 3]


@pytest.mark.parametrize(
    "name",
    ["it's", "'; DROP TABLE x; --", 'a "quoted" one', "dots.and spaces", "ünï/çø∂é", "x.csv", "100%", "a;b", "-- c"],
)
def test_paths_that_look_like_sql(client: Client, ask: Ask, prefix: str, name: str) -> None:
    path = f"{prefix}/{name}"
    client.stream(path).create(messages=[{"n": 1}])
    text, quoted = path.replace("'", "''"), path.replace('"', '""')
    assert ask(f"SELECT n FROM '{text}'") == [1]
    assert ask(f'SELECT "{quoted}".n FROM "{quoted}"') == [1]
    assert ask(f"SELECT s.n FROM stream('{text}') s, \"{quoted}\" t WHERE s.n = t.n") == [1]


def test_globs(client: Client, ask: Ask, prefix: str) -> None:
    for name in ("a", "b", "b/c"):
        client.stream(f"{prefix}/{name}").create(messages=[{"name": name}])
    client.stream(f"{prefix}/b").append({"name": "b", "more": 1})
    assert ask(f"SELECT _stream, name FROM '{prefix}/*' ORDER BY ALL") == [
        (f"{prefix}/a", "a"),
        (f"{prefix}/b", "b"),
        (f"{prefix}/b", "b"),
    ]
    assert ask(f"SELECT count(*), count(more) FROM '{prefix}/**'") == [(4, 1)]
    client.stream(f"{prefix}/text").create(content_type="text/plain")
    with pytest.raises(SqlError, match=r"several kinds, '.*/b' \(json\) and '.*/text' \(text\)"):
        ask(f"FROM '{prefix}/*'")
    with pytest.raises(SqlError, match="there is no stream, table or file"):
        ask(f"FROM '{prefix}/none/*'")


def test_a_path_with_the_characters_of_a_glob(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(f"{prefix}/[a]*").create(messages=[{"n": 1}])
    assert ask(f"SELECT n FROM '{prefix}/[a]*'") == [1]


def test_a_stream_is_scanned_as_often_as_it_is_named(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"n": n} for n in range(10)])
    query = f"WITH q AS (FROM '{prefix}') SELECT count(*) FROM q a JOIN q b USING (n) JOIN '{prefix}' c USING (n)"
    assert ask(query) == [10]
    assert ask(f"SELECT count(*) FROM '{prefix}' a NATURAL JOIN stream('{prefix}') b") == [10]


def test_a_query_ends_where_the_stream_ended_when_it_began(client: Client, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create(messages=[{"n": 1}])
    with SqlSession(client) as session:
        answer = session.query(f"SELECT n FROM '{prefix}'")
        stream.append({"n": 2})
        assert answer.arrow()["n"].to_pylist() == [1]
        assert session.has_new_data(answer)
        again = session.query(f"SELECT n FROM '{prefix}'")
        assert again.arrow()["n"].to_pylist() == [1, 2]
        assert not session.has_new_data(again)


def test_new_streams_of_a_glob_are_new_data(client: Client, prefix: str) -> None:
    client.stream(f"{prefix}/a").create(messages=[{"n": 1}])
    with SqlSession(client) as session:
        answer = session.query(f"SELECT n FROM '{prefix}/*'")
        answer.arrow()
        assert not session.has_new_data(answer)
        client.stream(f"{prefix}/b").create(messages=[{"n": 1}])
        assert session.has_new_data(answer)


def test_new_data_of_a_stream_beside_a_glob(client: Client, prefix: str) -> None:
    client.stream(f"{prefix}/a").create(messages=[{"n": 1}])
    client.stream(f"{prefix}-names").create(messages=[{"n": 1, "name": "one"}])
    with SqlSession(client) as session:
        answer = session.query(f"SELECT name FROM '{prefix}/*' JOIN '{prefix}-names' USING (n)")
        answer.arrow()
        assert not session.has_new_data(answer)
        client.stream(f"{prefix}-names").append({"n": 2, "name": "two"})
        assert session.has_new_data(answer)


def test_a_part_of_a_stream(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    for n in range(3):
        stream.append({"n": n})
    offsets = [record.offset for record in stream.records()]
    assert ask(f"SELECT n FROM stream('{prefix}', since := '{offsets[1]}')") == [1, 2]
    assert ask(f"SELECT n FROM stream('{prefix}', since := '{offsets[1]}', until := '{offsets[2]}')") == [1]
    assert ask(f"SELECT n FROM stream('{prefix}', since := '1h')") == [0, 1, 2]
    assert ask(f"SELECT count(*) FROM stream('{prefix}', since := '2100-01-01T00:00:00Z')") == [0]
    assert ask(f"SELECT count(*) FROM stream('{prefix}', until := '2000-01-01')") == [0]
    with pytest.raises(SqlError, match="a time is 30s, 15m"):
        ask(f"FROM stream('{prefix}', since := 'yesterday')")
    client.stream(f"{prefix}-other").create(messages=[1])
    of_other = client.stream(f"{prefix}-other").head().tail_offset
    for offset in ("1_1", "9_9", of_other, offsets[1][:-1] + "9"):
        for part in ("since", "until"):
            with pytest.raises(InvalidOffsetError):
                ask(f"FROM stream('{prefix}', {part} := '{offset}')")
    stream.trim(offsets[1])
    with pytest.raises(OffsetTrimmedError):
        ask(f"FROM stream('{prefix}', since := '{offsets[0]}')")


def test_streams_without_fields(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(f"{prefix}/empty").create()
    assert ask(f"SELECT count(*) FROM '{prefix}/empty'") == [0]
    assert ask(f"FROM '{prefix}/empty'") == []
    client.stream(f"{prefix}/plain").create()
    client.stream(f"{prefix}/plain").append_body(b'[1, "two", [3], null]')
    assert ask(f"FROM '{prefix}/plain'") == ["1", '"two"', "[3]", "null"]
    client.stream(f"{prefix}/text").create(content_type="text/plain")
    client.stream(f"{prefix}/text").append("two\nlines")
    assert ask(f"SELECT value, _value, _stream FROM '{prefix}/text'") == [("two\nlines",) * 2 + (f"{prefix}/text",)]
    client.stream(f"{prefix}/bytes").create(content_type="application/octet-stream")
    client.stream(f"{prefix}/bytes").append(b"\xff\x00")
    assert ask(f"SELECT value FROM '{prefix}/bytes'") == [b"\xff\x00"]


@pytest.mark.parametrize(
    ("query", "wording"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("", "the query is empty"),
        ("SELECT 1; SELECT 2", "one query at a time"),
        ("CREATE TABLE x AS SELECT 1", "only queries are run"),
        ("COPY (SELECT 1) TO 'x.csv'", "only queries are run"),
        ("INSTALL httpfs", "only queries are run"),
        ("ATTACH 'x.db'", "only queries are run"),
        ("EXPORT DATABASE 'x'", "only queries are run"),
        ("EXPLAIN ANALYZE COPY (SELECT 1) TO 'x.csv'", "only queries are run"),
        ("FROM query('COPY (SELECT 1) TO ''x.csv''')", "Expected a single SELECT statement"),
        ("SHOW TABLES", "headwater list and headwater table list show them"),
        ("FROM 'https://example.com/x.parquet'", "needs the DuckDB extension httpfs, and none is fetched"),
        ("FROM nothing_like_it", "there is no stream, table or file 'nothing_like_it'"),
        ("FROM stream('nothing_like_it')", "there is no stream 'nothing_like_it'"),
        ("FROM table('nothing_like_it')", "there is no table 'nothing_like_it'"),
        ("FROM state('nothing_like_it', 'a')", "there is no stream 'nothing_like_it'"),
        ("FROM delta('nothing_like_it')", "there is no Delta table at 'nothing_like_it'"),
        ("FROM stream()", "write stream('NAME', since := …, until := …, types := …)"),
        ("FROM stream('x', before := '1')", "write stream('NAME'"),
        ("FROM stream('x' || 'y')", "the arguments of stream() are texts, numbers and true or false"),
        ("FROM state('x')", "write state('PATH', 'TYPE', at := …)"),
        ("SELECT 1 / 'a'", "Could not convert string 'a'"),
    ],
)
def test_what_cannot_be_run(ask: Ask, query: str, wording: str) -> None:
    with pytest.raises(SqlError) as raised:
        ask(query)
    assert wording in str(raised.value)
    assert "\n" not in raised.value.detail


def test_a_column_that_does_not_exist(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"status": "paid", "total": 1}])
    with pytest.raises(SqlError, match="there is no column 'staus'; did you mean 'status'"):
        ask(f"SELECT staus FROM '{prefix}'")
    with pytest.raises(SqlError, match=f"there is no column 'xyz'; '{prefix}' has status, total"):
        ask(f"SELECT t.xyz FROM '{prefix}' t")


def test_columns_by_their_number(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"n": 7, "m": 1}, {"n": 9, "m": 2}])
    assert ask(f"SELECT #1 FROM '{prefix}'") == [7, 9]
    assert ask(f"SELECT m FROM '{prefix}' ORDER BY #1 DESC") == [2, 1]
    with pytest.raises(SqlError, match="there is no column 'nothing'"):
        ask(f"SELECT nothing FROM '{prefix}'")


def test_a_path_that_is_nearly_right(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(f"{prefix}/orders").create()
    with pytest.raises(SqlError, match=f"did you mean '{prefix}/orders'"):
        ask(f"FROM '{prefix}/order'")


def test_names_that_differ_by_case(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(f"{prefix}/a").create(messages=[{"n": 1}])
    client.stream(f"{prefix}/A").create(messages=[{"n": 2}])
    assert ask(f"SELECT a.n, b.n FROM stream('{prefix}/a') a, stream('{prefix}/A') b") == [(1, 2)]
    with pytest.raises(SqlError, match="are one name in SQL"):
        ask(f"SELECT 1 FROM '{prefix}/a', '{prefix}/A'")


def test_files_and_their_names(client: Client, ask: Ask, prefix: str, tmp_path: Path) -> None:
    (tmp_path / f"{prefix}.csv").write_text("n,name\n1,tea\n")
    client.stream(f"{prefix}/s").create(messages=[{"n": 1}])
    with contextlib.chdir(tmp_path):
        assert ask(f"SELECT f.name FROM '{prefix}.csv' f JOIN '{prefix}/s' USING (n)") == ["tea"]
        client.stream(f"{prefix}.csv").create(messages=[{"n": 5}])
        with pytest.raises(SqlError, match=r"has several meanings; write stream.* or './"):
            ask(f"FROM '{prefix}.csv'")
        assert ask(f"SELECT n FROM './{prefix}.csv'") == [1]
        assert ask(f"SELECT n FROM stream('{prefix}.csv')") == [5]
    assert ask(f"SELECT n FROM '{tmp_path}/{prefix}.csv'") == [1]


def test_a_token_that_may_read_some_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files and globs are no paths that it may not read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.csv").write_text("n,name\n1,one\n")
    admin, _ = add_token(tmp_path / "auth.toml", "admin", ["admin:**"], None)
    reader, _ = add_token(tmp_path / "auth.toml", "reader", ["read:shop/*"], None)
    with memory_server("--auth", str(tmp_path / "auth.toml")) as server:
        with Client(server.url, token=admin) as client:
            for path in ("shop/a", "other/b"):
                client.stream(path).create(messages=[{"n": 1}])
            client.table("prices").create()
        with Client(server.url, token=reader) as client, SqlSession(client) as session:
            for query in ("SELECT name FROM 'shop/a' JOIN 'names.csv' USING (n)", "SELECT _stream FROM stream('**')"):
                assert session.query(query).arrow().num_rows == 1
            for name in ("'other/b'", "stream('other/b')", "state('other/b', 'x')", "'prices'", "table('prices')"):
                with pytest.raises(ForbiddenError):
                    session.query(f"FROM {name}")
            with pytest.raises(SqlError, match="there is no stream, table or file 'other/\\*'"):
                session.query("FROM 'other/*'")


def test_variables_of_python_are_no_tables(ask: Ask) -> None:
    import pyarrow as pa

    secret = pa.table({"n": [1]})
    with pytest.raises(SqlError, match="there is no stream, table or file 'secret'"):
        ask("FROM secret")
    assert secret.num_rows == 1


def test_common_tables_come_before_streams(client: Client, ask: Ask, prefix: str) -> None:
    client.stream(prefix).create(messages=[{"n": 1}])
    assert ask(f"WITH {prefix} AS (SELECT 7 AS n) SELECT n FROM {prefix}") == [7]


def test_a_stream_that_is_deleted_while_it_is_read(client: Client, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    for _ in range(40):  # more than is received ahead
        stream.append_many([{"pad": "x" * 1000} for _ in range(900)])
    with SqlSession(client) as session:
        answer = session.query(f"SELECT pad FROM '{prefix}'")
        stream.delete()
        with pytest.raises(HeadwaterError) as raised:
            answer.arrow()
        assert raised.value.status in (404, 410)


def test_a_stream_that_is_trimmed_while_it_is_read(client: Client, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    body = b"[" + b",".join([b'{"pad":"%s"}' % (b"x" * 100)] * 5000) + b"]"
    for _ in range(120):  # more than is received ahead
        stream.append_body(body)
    with SqlSession(client) as session:
        batches = session.query(f"SELECT pad FROM '{prefix}'").batches()
        next(batches)
        stream.trim("now")
        with pytest.raises(OffsetTrimmedError):
            list(batches)
        assert session.query(f"SELECT count(*) AS n FROM '{prefix}'").arrow().to_pylist() == [{"n": 0}]


def test_a_stream_that_begins_with_a_snapshot(client: Client, ask: Ask, prefix: str) -> None:
    stream = client.stream(prefix)
    stream.create()
    stream.retain(compact=True)
    events = (
        {"type": "o", "key": f"k{n % 3}", "value": {"n": n}, "headers": {"operation": "upsert"}} for n in range(99)
    )
    stream.append_many(list(events))
    assert stream.compact().compacted
    stream.append({"type": "o", "key": "k0", "value": {"n": 100}, "headers": {"operation": "upsert"}})
    assert ask(f"SELECT (value->>'n')::INT AS n FROM '{prefix}' WHERE type = 'o' ORDER BY n") == [96, 97, 98, 100]
    assert ask(f"SELECT key, n FROM state('{prefix}', 'o') ORDER BY key") == [("k0", 100), ("k1", 97), ("k2", 98)]
    with pytest.raises(OffsetTrimmedError):
        ask(f"SELECT key FROM state('{prefix}', 'o', at := '1h')")


def test_what_does_not_fit_into_memory_is_beside_no_data_of_the_user(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SqlSession(client) as session:
        query = "SELECT value FROM duckdb_settings() WHERE name = 'temp_directory'"
        (row,) = session.query(query).arrow().to_pylist()
        spilled = Path(row["value"])
        assert spilled.stat().st_mode & 0o777 == 0o700
    assert not spilled.exists()
    assert list(tmp_path.iterdir()) == []


FORKS = """
import os, sys, tempfile
from headwater.client import Client
from headwater.errors import ForkedError
from headwater.sql import SqlSession

def count(session):
    return session.query("SELECT count(*) AS n FROM one").arrow().to_pylist()

with Client(sys.argv[1]) as client, SqlSession(client) as session:
    client.stream("one").create(messages=[1])
    assert count(session) == [{"n": 1}]
    answer = session.query("SELECT 2 AS n")
    child = os.fork()
    if not child:
        try:
            answer.arrow()
        except ForkedError as error:
            print(error)
        print(count(session), len(os.listdir(tempfile.gettempdir())))
        session.close()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(answer.arrow().to_pylist(), len(os.listdir(tempfile.gettempdir())))
print(len(os.listdir(tempfile.gettempdir())))
"""


def test_a_session_in_a_forked_process(tmp_path: Path) -> None:
    """DuckDB crashes there if it uses what the parent opened."""
    with memory_server() as server:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORKS, server.url],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.splitlines() == [
        "this SqlAnswer belongs to the parent process; run the query here",
        "[{'n': 1}] 2",
        "[{'n': 2}] 1",
        "0",
    ], done.stderr


def test_a_long_stream_is_sampled_in_several_places(client: Client, ask: Ask, prefix: str) -> None:
    """A field that appears late, or is no longer an integer late, is found."""
    stream = client.stream(prefix)
    stream.create()
    for number in range(16):
        late = {"late": 1, "n": 0.5} if number > 8 else {"n": 1}
        stream.append_many([{"pad": "x" * 1000, **late} for _ in range(500)])
    assert ask(f"SELECT count(late), sum(n) FROM '{prefix}'") == [(3500, 9 * 500 + 0.5 * 3500)]


def test_environment_of_a_proxy_does_not_matter(
    client: Client, ask: Ask, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.stream(prefix).create(messages=[{"n": 1}])
    monkeypatch.setitem(os.environ, "http_proxy", "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "no_proxy", "")
    with SqlSession(client) as session:  # the client was made before, so it goes without the proxy
        assert session.query(f"SELECT n FROM '{prefix}'").arrow()["n"].to_pylist() == [1]
