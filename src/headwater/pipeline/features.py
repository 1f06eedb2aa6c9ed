"""Which Delta tables the jobs can read and write, by the features in their protocol.

Other writers (Spark, Databricks, Fabric) may use features that change what the files of a table mean: a deletion vector
marks rows of a file as deleted, and column mapping gives columns other names in the files. Reading such a table without
the feature gives wrong rows, so a table with a feature that is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deltalake import DeltaTable

from headwater.errors import UnsupportedTableError

_READ = frozenset({"timestampNtz", "vacuumProtocolCheck"})
_WRITTEN = _READ | {"appendOnly", "changeDataFeed", "invariants"}
_MAPPING = "delta.columnMapping.mode"
# Versions of the protocol before 7 have no list of features: a table uses those that its properties or columns name.
_BY_PROPERTY = {
    "delta.constraints.": "checkConstraints",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableIcebergCompat": "icebergCompat",
}
_BY_COLUMN = {
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "delta.invariants": "invariants with an expression",
}


def check_readable(table: DeltaTable) -> None:
    """Refuse a table whose files may not be read as they are."""
    protocol = table.protocol()
    used = set(protocol.reader_features or ())
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        used.add("columnMapping")
    if protocol.min_reader_version > 3:
        used.add(f"reader version {protocol.min_reader_version}")
    _refuse(table, used - _READ, "read")


def check_writable(table: DeltaTable) -> None:
    """Refuse a table that needs more of its writers than adding and removing files."""
    protocol, properties = table.protocol(), table.metadata().configuration
    used = set(protocol.writer_features or ())
    if protocol.min_writer_version > 7:
        used.add(f"writer version {protocol.min_writer_version}")
    used |= _named(properties, _BY_PROPERTY)
    for field in table.schema().fields:
        used |= _named(field.metadata, _BY_COLUMN)
    _refuse(table, used - _WRITTEN, "written")


def _named(values: Mapping[str, object], names: Mapping[str, str]) -> set[str]:
    """The features that are named by properties, except those that are set to false."""
    present = [name for name, value in values.items() if str(value).lower() != "false"]
    return {feature for start, feature in names.items() if any(name.startswith(start) for name in present)}


def _refuse(table: DeltaTable, features: Iterable[str], what: str) -> None:
    if names := sorted(features):
        word = "feature" if len(names) == 1 else "features"
        uses = f"it uses the Delta {word} {', '.join(names)}, which Headwater does not support"
        raise UnsupportedTableError(f"{table.table_uri} cannot be {what}: {uses}")
