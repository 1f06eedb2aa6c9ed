"""The settings of `materialize`: checked before the start, and stored with the table for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from headwater.errors import OptionError

Path: TypeAlias = Literal["auto", "merge", "buckets"]

RESERVED = frozenset(  # columns of events and tables; a field of a value with such a name gets a prefix
    {
        "append_time",
        "bad",
        "begin",
        "control",
        "control_offset",
        "deleted",
        "incarnation",
        "is_current",
        "key",
        "message",
        "offset",
        "old_value",
        "operation",
        "order",
        "position",
        "sequence",
        "stream",
        "timestamp",
        "txid",
        "type",
        "updated_at",
        "valid_from",
        "valid_from_order",
        "valid_to",
        "valid_to_order",
        "value",
    }
)
_PREFIX = "value_"


class MaterializeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How events become rows."""

    type: str | None = None  # None: events of all types
    schema: str | None = None  # of values; None: they stay JSON text
    keys: tuple[str, ...] = ("key",)
    sequence_by: str | None = None
    apply_as_deletes: str | None = None
    scd: Literal[1, 2] = 1
    tracked: tuple[str, ...] | None = None
    buckets: int
    path: Path = "auto"

    @property
    def is_history(self) -> bool:
        return self.scd == 2

    def lasting(self) -> dict[str, Any]:
        """The settings that must not change between two starts, because the existing rows depend on them."""
        return {
            "type": self.type,
            "keys": list(self.keys),
            "sequence_by": self.sequence_by,
            "apply_as_deletes": self.apply_as_deletes,
            "stored_as_scd_type": self.scd,
            "track_history_column_list": None if self.tracked is None else list(self.tracked),
            "buckets": self.buckets,
        }


def checked(
    *,
    type: str | None,  # noqa: A002
    schema: str | None,
    keys: Sequence[str] | str | None,
    sequence_by: str | None,
    apply_as_deletes: str | None,
    stored_as_scd_type: int | str,
    track_history_column_list: Sequence[str] | str | None,
    buckets: int,
    path: str,
) -> MaterializeSettings:
    if str(stored_as_scd_type) not in ("1", "2"):
        raise OptionError(f"stored_as_scd_type must be 1 (current state) or 2 (history), got {stored_as_scd_type!r}")
    if path not in ("auto", "merge", "buckets"):
        raise OptionError(f"path must be auto, merge or buckets, got {path!r}")
    if not 1 <= buckets <= _BUCKETS_MAX:
        raise OptionError(f"buckets must be a number from 1 to {_BUCKETS_MAX}, got {buckets}")
    tracked = _names(track_history_column_list)
    if tracked is not None and str(stored_as_scd_type) != "2":
        raise OptionError("track_history_column_list is for a history: set stored_as_scd_type to 2")
    found = _names(keys) or ("key",)
    if schema is None and found != ("key",):
        raise OptionError("keys names fields of the value, so it needs a schema")
    return MaterializeSettings(
        type=type,
        schema=schema,
        keys=found,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        scd=2 if str(stored_as_scd_type) == "2" else 1,
        tracked=tracked,
        buckets=buckets,
        path=path,  # type: ignore[arg-type]
    )


_BUCKETS_MAX = 65_536


def _names(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = given.split(",") if isinstance(given, str) else given
    return tuple(name.strip() for name in names if name.strip()) or None


def column_of(field: str) -> str:
    """The column for a field of the value."""
    return f"{_PREFIX}{field}" if field.lower() in RESERVED or field.startswith("_") else field
