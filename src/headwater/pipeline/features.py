"""Which Delta tables the jobs can read and write, by the features in their protocol.

Other writers (Spark, Databricks, Fabric) may use features that change what the files of a table mean: a deletion vector
marks rows of a file as deleted, and column mapping gives columns other names in the files. Reading such a table without
the feature gives wrong rows, so a table with a feature that is not known here is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from headwater.errors import UnsupportedTableError

_READ = frozenset({"timestampNtz"})  # delta-rs refuses a dataset of a table with others when it is read
_WRITTEN = _READ | {"appendOnly", "changeDataFeed", "invariants"}
_MAPPING = "delta.columnMapping.mode"
_APPEND_ONLY = "delta.appendOnly"
_COMMIT = re.compile(r"/\d{20}(\.checkpoint\.[0-9a-f-]{36})?\.json$")
_CHECKPOINT = re.compile(r"/\d{20}\.checkpoint\..*parquet$")
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
    _refuse(table.table_uri, used - _READ, "read")


def check_writable(table: DeltaTable, *, removes: bool) -> None:
    """Refuse a table that needs more of its writers than adding files, and removing them if the caller does that."""
    protocol, properties = table.protocol(), table.metadata().configuration
    used = set(protocol.writer_features or ())
    if protocol.min_writer_version > 7:
        used.add(f"writer version {protocol.min_writer_version}")
    used |= _named(properties, _BY_PROPERTY)
    for field in table.schema().fields:
        used |= _named(field.metadata, _BY_COLUMN)
    unknown = used - _WRITTEN
    if removes and str(properties.get(_APPEND_ONLY)).lower() == "true":
        unknown.add("appendOnly")
    _refuse(table.table_uri, unknown, "written")


def _named(values: Mapping[str, object], names: Mapping[str, str]) -> set[str]:
    """The features that are named by properties, except those that are set to false."""
    present = [name for name, value in values.items() if str(value).lower() != "false"]
    return {feature for start, feature in names.items() if any(name.startswith(start) for name in present)}


def refuse_unknown(uri: str, files: pyarrow.fs.PyFileSystem) -> None:
    """Refuse a table that delta-rs cannot open, if its log names a feature that is not known here."""
    try:
        protocol = _newest_protocol(files)
    except (OSError, ValueError, DeltaError):  # the log cannot be read either, as the caller's error says
        return
    used = set(protocol.get("readerFeatures") or ())
    if protocol.get("minReaderVersion", 0) > 3:
        used.add(f"reader version {protocol['minReaderVersion']}")
    _refuse(uri, used - _READ, "read")


def _newest_protocol(files: pyarrow.fs.PyFileSystem) -> dict[str, Any]:
    """The protocol in the newest commit or checkpoint that has one."""
    there = files.get_file_info(pyarrow.fs.FileSelector("_delta_log", allow_not_found=True))
    for path in sorted((info.path for info in there), reverse=True):
        if _COMMIT.search(path):
            with files.open_input_stream(path) as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line.strip()]
        elif _CHECKPOINT.search(path):
            with files.open_input_file(path) as source:
                actions = pq.read_table(source, columns=["protocol"]).to_pylist()
        else:
            continue
        if protocols := [action["protocol"] for action in actions if action.get("protocol")]:
            return dict(protocols[-1])
    return {}


def _refuse(uri: str, features: Iterable[str], what: str) -> None:
    if names := sorted(features):
        word = "feature" if len(names) == 1 else "features"
        uses = f"it uses the Delta {word} {', '.join(names)}, which Headwater does not support"
        raise UnsupportedTableError(f"{uri} cannot be {what}: {uses}")
