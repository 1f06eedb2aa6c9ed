"""The operations and controls of state events."""

from __future__ import annotations

from typing import Literal, TypeAlias

Operation: TypeAlias = Literal["insert", "update", "delete", "upsert"]
Control: TypeAlias = Literal["snapshot-start", "snapshot-end", "up-to-date", "reset"]

RESET: Control = "reset"
UPSERT: Operation = "upsert"
DELETE: Operation = "delete"
