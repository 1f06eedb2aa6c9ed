"""The events of a connection that follows many streams, as its reader got them."""

from __future__ import annotations

import json
from typing import Any

from headwater.protocol.streams.sse import EventReader


class CombinedEvents:
    """Events by their streams, from the bytes of a response."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._parser = EventReader()

    def receive(self, data: bytes) -> None:
        self.received += data
        self.events += [(name.decode(), json.loads(text)) for name, text in self._parser.feed(data)]

    def messages(self, path: str) -> list[Any]:
        return [message for _, event in self.events if event["stream"] == path for message in event.get("messages", ())]

    def controls(self, path: str) -> list[set[str]]:
        """What the control events of a stream say."""
        named = {"stream", "nextOffset"}
        return [set(event) - named for name, event in self.events if name == "control" and event["stream"] == path]

    def is_up_to_date(self, *paths: str) -> bool:
        return all({"upToDate"} in self.controls(path) for path in paths)

    def offset(self, path: str) -> str:
        return str([event["nextOffset"] for _, event in self.events if event["stream"] == path][-1])

    @property
    def count(self) -> int:
        """Of all messages."""
        return sum(len(event.get("messages", ())) for _, event in self.events)

    @property
    def last_id(self) -> str:
        """The id of the last whole event."""
        whole = self.received[: self.received.rindex(b"\n\n")]
        return whole.rpartition(b"\nid:")[2].partition(b"\n")[0].decode()
