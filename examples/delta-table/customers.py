"""Change events as a real source sends them: some late, some twice, and one that is wrong.

The versions give the order in which things happened at the source. They arrive in the order of the list.
"""

from __future__ import annotations

import os
from typing import Any

from headwater.client import Client


def event(operation: str, key: str, **value: Any) -> dict[str, Any]:
    """An event of the State Protocol."""
    return {"type": "customer", "key": key, "value": value, "headers": {"operation": operation}}


EVENTS = [
    event("insert", "ann", city="Berlin", version=1),
    event("insert", "bo", city="Oslo", version=1),
    event("insert", "cy", city="Rome", version=1),
    event("update", "ann", city="Paris", version=3),
    event("update", "ann", city="Bonn", version=2),  # late: Ann lives in Paris by now
    event("delete", "bo", version=2),
    event("insert", "bo", city="Oslo", version=1),  # twice: Bo must not come back
    event("insert", "di", city="Lima", version="one"),  # wrong: this version is no number
]


def main() -> None:
    with Client(os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")) as client:
        stream = client.stream("crm/customers")
        stream.create()  # harmless if it is there
        stream.append_many(EVENTS)
    print(f"appended {len(EVENTS)} events to crm/customers")


if __name__ == "__main__":
    main()
