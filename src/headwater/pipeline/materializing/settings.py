"""The settings of `materialize`: checked before the start, and stored with the table for the next start."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headwater import limits
from headwater.errors import OptionError
from headwater.pipeline.options import MaterializeOptions, names_of

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
    path: str = "auto"  # or merge, buckets

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


def settings_of(options: MaterializeOptions) -> MaterializeSettings:
    """Check what concerns several options, and make the settings."""
    scd: Literal[1, 2] = 2 if str(options.stored_as_scd_type) == "2" else 1
    tracked, keys = names_of(options.track_history_column_list), names_of(options.keys) or ["key"]
    if tracked is not None and scd != 2:
        raise OptionError("track_history_column_list is for a history: set stored_as_scd_type to 2")
    if options.schema is None and keys != ["key"]:
        raise OptionError("keys names fields of the value, so it needs a schema")
    return MaterializeSettings(
        type=options.type,
        schema=options.schema,
        keys=tuple(keys),
        sequence_by=options.sequence_by,
        apply_as_deletes=options.apply_as_deletes,
        scd=scd,
        tracked=None if tracked is None else tuple(tracked),
        buckets=limits.PIPELINE_BUCKETS_MIN if options.buckets is None else options.buckets,
        path=options.path,
    )


def column_of(field: str) -> str:
    """The column for a field of the value."""
    return f"{_PREFIX}{field}" if field.lower() in RESERVED or field.startswith("_") else field
