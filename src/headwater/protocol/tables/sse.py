"""Rows as server-sent events: the SeqNo is the id, the row without its newline the data.

A browser sends the id of the last event as `Last-Event-ID` when it reconnects, and gets the rows after it. Events have
no name, so an EventSource passes them to `onmessage`.
"""

from __future__ import annotations


def event_frames(rows: bytes) -> bytes:
    """The events for stored rows, each with its newline.

    The record of a mirrored row may contain a carriage return, which would end a line of the event, so that the text
    after it could look like a field. It becomes a line end in the data, as in the events of streams.
    """
    if not rows:
        return b""
    lines = rows[:-1].split(b"\n")
    if b"\r" in rows:
        lines = [line.replace(b"\r", b"\ndata: ") for line in lines]
    parts = [b"\n\n"] * (5 * len(lines))
    parts[0::5] = [b"id: "] * len(lines)
    parts[1::5] = [line[: line.index(b"\t")] for line in lines]
    parts[2::5] = [b"\ndata: "] * len(lines)
    parts[3::5] = lines
    return b"".join(parts)
