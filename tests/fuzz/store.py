"""What is read from disk: segments of the journal, records, documents, chunks of the index; and configuration."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from headwater.cli.pipeline.config import load_pipeline
from headwater.errors import DamagedDataError, HeadwaterError, OptionError
from headwater.limits import parse_limits
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created, DocumentWritten, Event
from headwater.log.moments import Moment
from headwater.log.state import Document
from headwater.server.following.policy import parse_policy
from headwater.server.settings import Loaded, as_toml, load_settings
from headwater.server.views import definition
from headwater.store.embedded import chunks
from headwater.store.embedded.backup import formats
from headwater.store.embedded.backup.failures import DamagedBackupError
from headwater.store.embedded.index import DocumentRow, decode_document, encode_document
from headwater.store.embedded.journal import (
    CorruptJournalError,
    JournalBatch,
    UnknownFormatError,
    encode_batch,
    encode_header,
    encode_records,
    encode_seal,
    read_intact,
    read_segment,
)
from tests.fuzz.inputs import Choices, Target

SALT = 7
AT = Moment(1, 2, 3, 4)
RECORDS: list[tuple[Event, ...]] = [
    (Created(id=1, path="a", content_type="text/plain", kind=ContentKind.TEXT, at_ms=1, data=b"x"),),
    (Appended(1, 1, 2, b"yz"), DocumentWritten("d", b"1")),
]
SEGMENT = (
    encode_header(1, SALT, 0)
    + encode_batch(5, AT, encode_records(RECORDS), SALT)
    + encode_batch(6, AT, encode_records(RECORDS[1:]), SALT)
)
FOUND = (CorruptJournalError, UnknownFormatError)


def segments(data: bytes) -> None:
    """A segment of any bytes: batches that were written, or an error that says where it is damaged."""
    for last in (False, True):
        try:
            segment = read_segment("f", data, 1, last=last, sequence=5)
        except FOUND:
            continue
        assert segment.end <= len(data)
        for batch in segment.batches:
            try:
                records = batch.records()
            except CorruptJournalError:
                continue
            assert all(isinstance(record, tuple) for record in records)
        sequence = segment.next_sequence or 0
        if not segment.sealed:
            assert data.startswith(segment.encode(sequence))
    try:
        intact = read_intact("f", data, 1)
    except UnknownFormatError:
        return
    assert intact is None or intact.end <= len(data)


def damage(data: bytes) -> None:
    """A segment with damage somewhere: what is read is what was written, as far as it goes, or nothing."""
    choices = Choices(data)
    sealed = bool(choices.number(1))
    whole = SEGMENT + encode_seal(7, SALT) if sealed else SEGMENT
    broken = bytearray(whole)
    for _ in range(1 + choices.number(3)):
        at = choices.number(len(broken) + 8)
        if at < len(broken):
            broken[at] ^= choices.number(255)
        else:
            del broken[choices.number(len(broken)) :]
            broken += choices.line()
    try:
        segment = read_segment("f", bytes(broken), 1, last=True, sequence=5)
    except FOUND:
        return
    records = [batch.records() for batch in segment.batches]
    assert records == [RECORDS, RECORDS[1:]][: len(records)]


def records(data: bytes) -> None:
    """Records behind a checksum that holds: events, or an error that names the file."""
    try:
        decoded = JournalBatch("f", 0, 1, AT, memoryview(data)).records()
    except CorruptJournalError:
        return
    assert msgspec.msgpack.decode(encode_records(decoded), type=list[tuple[Event, ...]]) == decoded


def index_rows(data: bytes) -> None:
    """Rows of the index: with a checksum that holds, or damaged."""
    choices = Choices(data)
    checksum = choices.number(2**32 - 1)
    key, body = choices.line().decode("latin-1"), choices.rest()
    try:
        decode_document(DocumentRow(key, 0, 1, checksum, body))
    except DamagedDataError:
        known = Document(key, body, 1)
        assert decode_document(encode_document(known)) == known
    if body:
        ends = sorted({1 + choices.number(len(body) - 1) for _ in range(3)} | {len(body)})
        times = [1_000 + 7 * number for number in range(len(ends))]
        rows = list(chunks.cut(1, 0, ends, times, body))
        made = [chunks.decode_chunk(row) for row in rows]
        assert b"".join(bytes(chunk.data) for chunk in made) == body


def backups(data: bytes) -> None:
    """Files of a backup: with a checksum that holds and any content, or any bytes."""
    choices = Choices(data)
    sealed = bool(choices.number(1))
    body = formats.seal(choices.rest()) if sealed else choices.rest()
    kinds: list[type[formats.BackupTimeline] | type[formats.Base] | type[formats.EncodedPart]]
    kinds = [formats.BackupTimeline, formats.Base, formats.EncodedPart]
    for kind in kinds:
        try:
            value = formats.decode("f", body, kind)
        except DamagedBackupError:
            continue
        assert formats.decode("f", formats.encode(value), kind) == value
    try:
        for batch in formats.decode_part("f", body).batches:
            batch.records()
    except (DamagedBackupError, CorruptJournalError):
        pass
    name = data.decode("latin-1")
    part, base = formats.parse_part(name), formats.parse_base(name)
    assert part is None or formats.parse_part(str(part)) == part
    assert base is None or formats.parse_base(str(base)) == base


def view_documents(data: bytes) -> None:
    try:
        document = definition.decode(data)
    except (HeadwaterError, msgspec.MsgspecError):
        return
    assert definition.decode(definition.encode(document)) == document


def settings(data: bytes) -> None:
    """Options from a file and the environment: settings, or an OptionError. What is shown can be read again."""
    choices = Choices(data)
    names = ("HEADWATER_PORT", "HEADWATER_LIMIT_LONG_POLL_S", "HEADWATER_ALLOW_ORIGIN", "HEADWATER_MEMORY")
    environment = {choices.choice(names): choices.line().decode("utf-8", "replace") for _ in range(choices.number(2))}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "headwater.toml"
        path.write_bytes(choices.rest())
        try:
            loaded = load_settings({}, environment, path)
        except OptionError as error:
            assert str(error)
            loaded = None
        if isinstance(loaded, Loaded):
            path.write_text("\n".join(as_toml(loaded)), "utf-8")
            assert load_settings({}, {}, path).settings.limits == loaded.settings.limits
        path.write_bytes(choices.rest() or data)
        try:
            load_pipeline(path)
        except (OptionError, ValueError):
            return


def policies(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        policy = parse_policy([text], [text], development=True)
    except ValueError:
        policy = None
    assert policy is None or isinstance(policy.follows, dict)
    try:
        parse_limits([text])
    except ValueError:
        return


TARGETS = {
    "segments": Target(
        segments,
        (SEGMENT, SEGMENT + encode_seal(7, SALT), encode_header(2, SALT, 0)),
        (b"HWB\n", b"HWJ\n", b"\x00" * 8, encode_batch(6, AT, b"\x90", SALT), encode_seal(6, SALT)),
    ),
    "damage": Target(damage, (b"\x00\x01\x40\xff", b"\x01\x02\x1c\x01\x80\x01"), (b"\x00", b"\xff", b"\n", b"HWB\n")),
    "records": Target(
        records,
        (bytes(encode_records(RECORDS)), bytes(encode_records(RECORDS[1:]))),
        (
            b"\x91",
            b"\x92",
            b"\xa8appended",
            b"\xa7created",
            b"\xc4\x01x",
            b"\xc0",
            b"\xcf" + b"\xff" * 8,
            b"\xdd\xff\xff\xff\xff",
        ),
    ),
    "index_rows": Target(index_rows, (b"\x00\x00\x00\x00key\nbody body body",), (b"\n", b"\x00", b"body")),
    "backups": Target(
        backups,
        (
            b"\x01" + msgspec.msgpack.encode(formats.EncodedPart(3, 1, 5, b"", [AT], [bytes(encode_records(RECORDS))])),
            b"0000000000000001-0000000000000002-0000000000000003-0000000000000004-0123456789abcdef",
        ),
        (b"\x81", b"\x95", b"\xa1a", b"\xc4\x01x", b"\x02", b"\xff", b"\xc0"),
    ),
    "view_documents": Target(view_documents, (b"{}",), (b"{", b"}", b'"', b":", b",", b"[", b"]", b"1")),
    "settings": Target(
        settings,
        (b"\x00port = 1\n[limits]\nlong_poll_s = 3\n", b'\x01\x0080\nhost = "a"\n'),
        (
            b"\n",
            b"[limits]",
            b"[",
            b"]",
            b" = ",
            b'"',
            b"port",
            b"memory = true",
            b"allow-origin",
            b"'''",
            b"1e400",
            b"nan",
            b"[[",
            b"{a={",
            b"[" * 600,
        ),
    ),
    "policies": Target(
        policies,
        (b"a=https://partner.example/t", b"https://partner.example/", b"long_poll_s=2"),
        (b"=", b"https://", b"http://127.0.0.1/", b"/", b"@", b"%", b"9" * 20),
    ),
}
