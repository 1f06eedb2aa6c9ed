"""`headwater append`: append messages from the command line, files or standard input."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import typer

from headwater import limits
from headwater.cli.connecting import AsJson, Server, connected
from headwater.cli.connecting import Path as StreamPath
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import meter, print_json, say
from headwater.log.content import ContentKind, kind_of
from headwater.log.json_framing import split_array
from headwater.log.producers import ProducerTuple

if TYPE_CHECKING:
    from headwater.client import Stream

_QUOTES = "A text needs double quotes: '\"text\"'"


def command(
    server: Server,
    path: StreamPath,
    messages: list[str] = typer.Argument(
        None, help="Messages; for a JSON stream each is a JSON text.", show_default=False
    ),
    file: list[str] = typer.Option([], "--file", "-f", help="Append a file, - for standard input. Repeatable."),
    array: str | None = typer.Option(
        None, metavar="FILE", help="Append the messages of a JSON array in a file as one batch; - for standard input."
    ),
    if_tail: str | None = typer.Option(
        None, metavar="OFFSET", help="Append only if the stream ends there; -1: if it is empty. For one batch."
    ),
    as_json: AsJson = False,
) -> None:
    """Append messages, each exactly once, even if requests have to be retried.

    Without messages or files, or for a single -, it reads standard input: one message per line for a JSON stream, the
    bytes unchanged for any other. A batch (messages given here, or --array) is atomic: it is stored completely or
    not at all.
    """
    if messages == ["-"]:
        messages, file = [], [*file, "-"]
    if array is not None and (messages or file):
        fail("--array excludes messages and --file", "Leave out the messages and --file.", code=WRONG_CALL)
    if if_tail is not None and (file or not (messages or array)):
        fail("--if-tail is for one batch", "Give the messages here, or --array.", code=WRONG_CALL)
    with connected(server, path) as client:
        stream = client.stream(path)
        kind = kind_of(stream.head().content_type)
        count, size, offset = 0, 0, ""
        if messages:
            count, size, offset = _append_given(stream, messages, kind, if_tail)
        if array is not None:
            if kind is not ContentKind.JSON:
                fail(f"{stream.url} is {stream.content_type}: --array is for streams of JSON", "Use --file.")
            count, size, offset = _append_array(stream, array, if_tail)
        for name in file or ([] if messages or array else ["-"]):
            more, more_bytes, offset = _append_file(stream, name, kind)
            count, size = count + more, size + more_bytes
        if not count:
            offset = stream.head().tail_offset
    if as_json:
        print_json({"messages": count, "bytes": size, "offset": offset})
    elif kind is ContentKind.JSON:
        say(f"appended {count:,} {'message' if count == 1 else 'messages'} ({size:,} bytes), now at {offset}")
    else:
        say(f"appended {size:,} bytes, now at {offset}")


def _append_given(stream: Stream, messages: list[str], kind: ContentKind, if_tail: str | None) -> tuple[int, int, str]:
    """Append all messages in one request, which can be retried because it is numbered."""
    encoded = [message.encode() for message in messages]
    try:
        done = stream.append_many(encoded, producer=ProducerTuple(uuid.uuid4().hex, 0, 0), if_tail=if_tail)
    except ValueError as error:
        wrong = next(filter(_is_not_json, encoded), None) if kind is ContentKind.JSON else None
        raise typer.BadParameter(str(error) if wrong is None else f"{_not_json(wrong)}. {_QUOTES}") from None
    return len(encoded), sum(map(len, encoded)), done.offset


def _append_array(stream: Stream, name: str, if_tail: str | None) -> tuple[int, int, str]:
    """Append the file in one request, which can be retried because it is numbered. The file is sent as it is."""
    with _opened(name) as source:
        body = source.read(limits.CLI_ARRAY_BYTES_MAX + 1)
    if len(body) > limits.CLI_ARRAY_BYTES_MAX:
        what = f"{name} has more than {limits.CLI_ARRAY_BYTES_MAX:,} bytes, too much for one batch"
        fail(what, f"Append one message per line: jq -c '.[]' {name} | headwater append {stream.url}")
    try:
        count = len(split_array(body))
    except msgspec.ValidationError:
        fail(f"{name} is not a JSON array", "For one message per line, use --file.", code=WRONG_CALL)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fail(f"{name} is not JSON: {error}", "Nothing was appended.", code=WRONG_CALL)
    if not count:
        return 0, 0, ""
    done = stream.append_body(body, producer=ProducerTuple(uuid.uuid4().hex, 0, 0), if_tail=if_tail)
    return count, len(body), done.offset


def _append_file(stream: Stream, name: str, kind: ContentKind) -> tuple[int, int, str]:
    count = size = read = 0
    with _opened(name) as source, stream.producer() as producer:
        total = os.fstat(source.fileno()).st_size if name != "-" else None
        with meter("appending", total) as update:
            for number, piece, piece_bytes in _pieces(source, kind):
                try:
                    producer.append(piece)
                except ValueError as error:
                    producer.close()
                    what = _not_json(piece) if _is_not_json(piece) else str(error)
                    where = "standard input" if name == "-" else name
                    fail(f"{where}, line {number}: {what}", f"The lines before it were appended ({count:,}).")
                count, size, read = count + 1, size + len(piece), read + piece_bytes
                update(read, None)
            producer.flush()
    return count, size, stream.head().tail_offset


def _is_not_json(message: bytes) -> bool:
    from headwater.client.codecs import encode_json

    try:
        encode_json(message)
    except ValueError:
        return True
    return False


def _not_json(message: bytes) -> str:
    text = message[:40].decode(errors="replace")
    return f"not one JSON value: {text}{'…' if len(message) > 40 else ''}"


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb") as source:
        yield source


def _pieces(source: BinaryIO, kind: ContentKind) -> Iterator[tuple[int, bytes, int]]:
    """Lines of JSON with their numbers, or pieces of other data as they arrive; with their size in bytes."""
    if kind is ContentKind.JSON:
        for number, line in enumerate(source, start=1):
            if text := line.strip():
                yield number, text, len(line)
        return
    read = getattr(source, "read1", source.read)
    while chunk := read(limits.CLI_READ_BYTES):
        yield 1, chunk, len(chunk)
