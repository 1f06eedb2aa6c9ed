"""Bodies of changes, and the escapes of tables that use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import EmptyBodyError, InvalidChangeError, TooManyMessagesError
from headwater.protocol.tables.changes import Changes, format_changes, is_plain_change, parse_changes
from headwater.protocol.tables.escaping import Escape, escape, is_escaped, unescape
from headwater.protocol.tables.rows import Action, Row, format_rows, parse_row

TEXT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), max_size=9)
ANY_TEXT = st.text(
    st.characters(
        exclude_categories=["Cs"], exclude_characters=[chr(c) for c in (*range(9), 11, 12, *range(14, 32), 127)]
    )
)
KINDS: list[Action] = ["+", "-"]


def test_a_body_is_lines_of_action_key_and_record() -> None:
    body = b"+\ta\thello world\n-\ta\n-\tb\t\n-\tc\tobsolete\n+\td\t"
    lines = [b"+\ta\thello world", b"-\ta\t", b"-\tb\t", b"-\tc\tobsolete", b"+\td\t"]
    changes = parse_changes(body, 5)
    assert changes == parse_changes(body + b"\n", 5) == Changes(lines)
    assert changes.actions == [b"+", b"-", b"-", b"-", b"+"]
    assert changes.keys == [b"a", b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("body", [b"+\tkey\trecord", b"-\tkey\t\n", b"+\ta b\t{}\n"])
def test_one_change_in_plain_ascii_is_recognised(body: bytes) -> None:
    assert is_plain_change(body)


@given(st.text("+-\t\n\rkr\x00\xe9", max_size=8))
def test_a_plain_change_is_one_valid_change(text: str) -> None:
    body = text.encode()
    if is_plain_change(body):
        assert parse_changes(body, 1).lines == [body.removesuffix(b"\n")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "the line is empty; remove it"),
        (b"*\tk\tr", "begins with \\+ or - and a tab, got '\\*"),
        (b"+k\tr", "begins with \\+ or - and a tab"),
        (b" +\tk\tr", "begins with \\+ or - and a tab"),
        (b"\xef\xbb\xbf+\tk\tr", "begins with \\+ or - and a tab"),
        (b"+", "the key is empty"),
        (b"+\t\tr", "the key is empty"),
        (b"-\t", "the key is empty"),
        (b"+\tk", "the record is missing"),
        (b"+\tk\ta\tb", "there is a tab in the key or record"),
        (b"-\tk\t\t", "there is a tab in the key or record"),
        (b"+\tk\tr+\tl\ts", "two changes; end each with a newline"),
        (b"+\tk\tr\r", "carriage return; end lines with a line feed alone"),
        (b"+\tk\t\x00", "control character b'.x00'"),
        (b"+\tk\x1b\tr", "control character"),
        (b"+\tk\t\x7f", "control character"),
        (b"+\tk\t\xff", "not UTF-8"),
        (b"+\tk\t\xed\xa0\x80", "not UTF-8"),
        (b"+\tk\t\xc3", "not UTF-8"),
        (b"+\t" + b"k" * (limits.KEY_BYTES_MAX + 1) + b"\tr", "the key is longer than 1024 bytes"),
        (b"+\tk\t" + b"r" * limits.CHANGE_BYTES_MAX, "the change is longer than"),
    ],
)
def test_an_error_names_the_first_invalid_line(bad: bytes, reason: str) -> None:
    body = b"+\ta\t1\n-\ta\n" + bad + b"\n" + b"+\tb\t\xff\n"
    with pytest.raises(InvalidChangeError, match=f"line 3: .*{reason}") as caught:
        parse_changes(body, 100)
    assert caught.value.line == 3
    assert caught.value.status == 400


def test_the_bounds_themselves_are_accepted() -> None:
    key = b"k" * limits.KEY_BYTES_MAX
    line = b"+\t" + key + b"\t" + b"r" * (limits.CHANGE_BYTES_MAX - len(key) - 3)
    assert parse_changes(line, 1).lines == [line]
    assert len(format_rows([line], limits.SEQNO_MAX, "2026-01-08T00:00:00.123Z")) <= limits.ROW_BYTES_MAX


@pytest.mark.parametrize("place", range(4))
def test_a_line_that_is_too_long_is_found_among_others(place: int) -> None:
    longest = b"+\tk\t" + b"r" * (limits.CHANGE_BYTES_MAX - 4)
    lines = [b"+\tk\tr", longest, b"-\tk\t", longest]
    assert parse_changes(b"\n".join(lines), 10).lines == lines
    lines.insert(place, longest + b"r")
    with pytest.raises(InvalidChangeError, match="the change is longer than") as error:
        parse_changes(b"\n".join(lines), 10)
    assert error.value.line == place + 1


def test_empty_bodies_and_too_many_changes_are_refused() -> None:
    with pytest.raises(EmptyBodyError):
        parse_changes(b"", 1)
    with pytest.raises(InvalidChangeError, match="line 1: the line is empty"):
        parse_changes(b"\n", 1)
    with pytest.raises(InvalidChangeError, match="line 2: the line is empty"):
        parse_changes(b"+\ta\t\n\n", 2)
    with pytest.raises(TooManyMessagesError, match="may have at most 1 changes, this one has 2"):
        parse_changes(b"-\ta\n-\tb\n", 1)


def accepted(body: bytes, escaping: Escape) -> bytes | int:
    """The changes of a body, or the number of its first invalid line."""
    try:
        return b"\n".join(parse_changes(body, 1000, escaping).lines)
    except InvalidChangeError as error:
        return error.line
    except EmptyBodyError:
        return 1


@given(
    st.lists(st.sampled_from([b"+", b"-", b"\t", b"k", b"\n", b"\r", b"\xc3", b"\xa9", b"\\", b"+\tk\t"])).map(b"".join)
)
def test_a_body_is_valid_if_each_of_its_lines_is(body: bytes) -> None:
    for escaping in Escape:
        lines = [accepted(line + b"\n", escaping) for line in body.removesuffix(b"\n").split(b"\n")]
        valid = b"\n".join([line for line in lines if isinstance(line, bytes)])
        faulty = next((number for number, line in enumerate(lines, 1) if isinstance(line, int)), None)
        assert accepted(body, escaping) == (valid if faulty is None else faulty)


@given(st.lists(st.tuples(st.sampled_from(KINDS), TEXT.filter(bool), TEXT), min_size=1))
def test_changes_round_trip_into_rows(changes: list[tuple[Action, str, str]]) -> None:
    parsed = parse_changes(format_changes(changes), len(changes))
    rows = format_rows(parsed.lines, 1, "t").decode().split("\n")[:-1]
    assert [parse_row(line) for line in rows] == [Row(n, "t", *change) for n, change in enumerate(changes, 1)]
    assert [key.decode() for key in parsed.keys] == [key for _, key, _ in changes]


@pytest.mark.parametrize(
    "change", [("+", "k", "a\n+\tb\tc"), ("+", "k\n", ""), ("+", "k", "a\tb"), ("+", "k", "\ud800")]
)
def test_a_field_cannot_inject_another_change(change: tuple[Action, str, str]) -> None:
    with pytest.raises(InvalidChangeError, match="line 2"):
        format_changes([("+", "k", "v"), change])
    with pytest.raises(EmptyBodyError):
        format_changes([])


@given(ANY_TEXT.filter(bool), ANY_TEXT)
def test_with_escapes_any_text_round_trips(key: str, record: str) -> None:
    body = format_changes([("+", key, record)], Escape.BACKSLASH)
    [line] = parse_changes(body, 1, Escape.BACKSLASH).lines
    _, escaped_key, escaped_record = line.decode().split("\t")
    assert (unescape(escaped_key), unescape(escaped_record)) == (key, record)


@given(st.text(st.sampled_from("\\tnrx\t\n\r")))
def test_each_text_has_one_escaped_form(text: str) -> None:
    assert unescape(escape(text)) == text
    try:
        plain = unescape(text)
    except ValueError:
        assert not is_escaped(text.encode())
    else:
        assert is_escaped(text.encode())
        if not set(text) & {"\t", "\n", "\r"}:
            assert escape(plain) == text


def test_the_escapes_are_four_of_postgresql_copy() -> None:
    assert escape("a\tb\nc\rd\\e") == r"a\tb\nc\rd\\e"
    assert unescape(r"\\t\t") == "\\t\t"
    for bad in ("\\", r"\x", r"\N", r"a\\\b"):
        with pytest.raises(ValueError, match="is not an escape"):
            unescape(bad)
    with pytest.raises(InvalidChangeError, match=r"line 1: there is a backslash that is not part of an escape"):
        parse_changes(b"+\tC:\\\tdir", 1, Escape.BACKSLASH)
    assert parse_changes(b"+\tC:\\\tdir", 1).keys == [b"C:\\"]  # without escapes a backslash is a backslash


def naive(body: bytes, escaping: Escape) -> list[bytes] | int:
    """The changes of a body, parsed line by line; the number of the first invalid line if there is one."""
    lines = []
    for number, line in enumerate(body.removesuffix(b"\n").split(b"\n"), 1):
        action, *rest = line.split(b"\t")
        if action == b"-" and len(rest) == 1:
            rest.append(b"")
        try:
            text = b"\t".join(rest).decode()
            if escaping is Escape.BACKSLASH:
                unescape(text)
        except ValueError:
            return number
        valid = action in (b"+", b"-") and len(rest) == 2 and 0 < len(rest[0]) <= limits.KEY_BYTES_MAX
        if not valid or any(ord(c) < 32 or ord(c) == 127 for c in text.replace("\t", "")):
            return number
        lines.append(b"\t".join((action, *rest)))
    return lines


@given(
    st.lists(
        st.sampled_from(
            [b"+", b"-", b"\t", b"\n", b"k", b"\\", b"\\t", b"\r", b"\x00", b"\xc3\xa9", b"\xff", b"+\tk\tr\n"]
        )
    ),
    st.sampled_from(Escape),
)
def test_any_bytes_are_changes_or_an_error_with_their_line(parts: list[bytes], escaping: Escape) -> None:
    body = b"".join(parts)
    if not body:
        return
    expected = naive(body, escaping)
    if isinstance(expected, int):
        with pytest.raises(InvalidChangeError) as caught:
            parse_changes(body, 1_000, escaping)
        assert caught.value.line == expected
    else:
        changes = parse_changes(body, 1_000, escaping)
        assert changes.lines == expected
        assert [(a, k) for a, k in zip(changes.actions, changes.keys, strict=True)] == [
            tuple(line.split(b"\t")[:2]) for line in expected
        ]
