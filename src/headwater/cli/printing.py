"""A batch of a stream on standard output, its bytes unchanged or as a line of JSON."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.log.content import ContentKind

if TYPE_CHECKING:
    from headwater.client import Batch


def print_batch(batch: Batch[bytes], kind: ContentKind, *, as_json: bool) -> None:
    out = sys.stdout.buffer
    if as_json:
        out.write(msgspec.json.encode(_record(batch, kind)) + b"\n")
    elif kind is ContentKind.JSON:
        out.write(b"".join(_line(message) for message in batch.items))
    else:
        out.write(b"".join(batch.items))
    out.flush()


def _line(message: bytes) -> bytes:
    """A message on one line, whatever white space it was written with."""
    return (msgspec.json.format(message, indent=-1) if b"\n" in message else message) + b"\n"


def _record(batch: Batch[bytes], kind: ContentKind) -> dict[str, Any]:
    record: dict[str, Any] = {"offset": batch.offset, "up_to_date": batch.up_to_date, "closed": batch.closed}
    if batch.skip:
        record["skip"] = batch.skip
    if kind is ContentKind.JSON:
        record["messages"] = [msgspec.Raw(message) for message in batch.items]
        return record
    data = b"".join(batch.items)
    try:
        record["text"] = data.decode()
    except UnicodeDecodeError:
        record["base64"] = base64.b64encode(data).decode()
    return record
