"""Every feature of the Delta protocol, given to an existing table as another writer would give it.

delta-rs makes those that it can make. For the others commits are written by hand, as the protocol defines them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.unit.pipeline.delta_logs import add_features, commit, delete_rows, last_action, set_protocol


class Feature(msgspec.Struct, frozen=True):
    """A feature, and what a job must do with a table that has it."""

    name: str  # as the refusal must name it
    give: Callable[[Path], None]
    readable: bool = False
    writable: bool = False
    removable: bool | None = None  # whether rows may also be removed; None: as `writable`


def _schema_of(table: Path) -> dict[str, Any]:
    return dict(json.loads(last_action(table, "metaData")["schemaString"]))


def _set_schema(table: Path, schema: dict[str, Any], **properties: str) -> None:
    metadata = last_action(table, "metaData")
    metadata["schemaString"] = json.dumps(schema)
    metadata["configuration"] |= {name.replace("_", "."): value for name, value in properties.items()}
    commit(table, {"metaData": metadata})


def _flag(*features: str, reader: bool = True, **properties: str) -> Callable[[Path], None]:
    """Only the feature in the protocol, and its properties."""

    def give(table: Path) -> None:
        names = list(features)
        add_features(table, reader=names if reader else [], writer=names, **properties)

    return give


def _deletion_vectors(table: Path) -> None:
    if DeltaTable(table).file_uris():
        delete_rows(table, 0, 1)
    else:
        _deletion_vectors_enabled(table)


def _deletion_vectors_enabled(table: Path) -> None:
    """Before the first row is deleted."""
    add_features(table, reader=["deletionVectors"], writer=[], delta_enableDeletionVectors="true")


def _mapped(mode: str, protocol: dict[str, Any]) -> Callable[[Path], None]:
    def give(table: Path) -> None:
        schema = _schema_of(table)
        for number, field in enumerate(schema["fields"], 1):
            field["metadata"] |= {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        set_protocol(table, protocol)
        _set_schema(table, schema, delta_columnMapping_mode=mode, delta_columnMapping_maxColumnId="99")

    return give


_NAMED = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["columnMapping"],
    "writerFeatures": ["columnMapping"],
}


def _widened(name: str) -> Callable[[Path], None]:
    def give(table: Path) -> None:
        schema = _schema_of(table)
        for field in [field for field in schema["fields"] if field["type"] == "long"][:1]:
            field["metadata"]["delta.typeChanges"] = [{"fromType": "integer", "toType": "long"}]
        add_features(table, reader=[name], writer=[], delta_enableTypeWidening="true")
        _set_schema(table, schema)

    return give


def _v2_checkpoint(table: Path) -> None:
    """A checkpoint of the second kind, with the files in a sidecar, and no commits before it."""
    log = table / "_delta_log"
    DeltaTable(table).create_checkpoint()
    classic = log / f"{DeltaTable(table).version():020d}.checkpoint.parquet"
    files = pq.read_table(classic, columns=["add"])
    classic.unlink()
    (log / "_last_checkpoint").unlink()
    add_features(table, reader=["v2Checkpoint"], writer=[], delta_checkpointPolicy="v2")
    version = max(int(one.stem) for one in log.glob("*.json") if one.stem.isdigit())
    name = f"{uuid.uuid4()}.parquet"
    (log / "_sidecars").mkdir()
    pq.write_table(files.filter(pc.is_valid(files["add"])), log / "_sidecars" / name)
    sidecar = {"path": name, "sizeInBytes": (log / "_sidecars" / name).stat().st_size, "modificationTime": 1}
    actions = [
        {"checkpointMetadata": {"version": version}},
        {"protocol": last_action(table, "protocol")},
        {"metaData": last_action(table, "metaData")},
        {"sidecar": sidecar},
    ]
    (log / f"{version:020d}.checkpoint.{uuid.uuid4()}.json").write_text("\n".join(map(json.dumps, actions)))
    _drop_commits(table, version)


def _variant(name: str) -> Callable[[Path], None]:
    def give(table: Path) -> None:
        add_features(table, reader=[name], writer=[])
        schema = _schema_of(table)
        schema["fields"].append({"name": "v", "type": "variant", "nullable": True, "metadata": {}})
        _set_schema(table, schema)

    return give


def _row_tracking(table: Path) -> None:
    add_features(
        table,
        reader=[],
        writer=["rowTracking", "domainMetadata"],
        delta_enableRowTracking="true",
        delta_rowTracking_materializedRowIdColumnName="_row_id",
    )
    configuration = json.dumps({"rowIdHighWaterMark": 4})
    commit(table, {"domainMetadata": {"domain": "delta.rowTracking", "configuration": configuration, "removed": False}})


def _clustering(table: Path) -> None:
    add_features(table, reader=[], writer=["clustering", "domainMetadata"])
    configuration = json.dumps({"clusteringColumns": [["key"]], "domainName": "delta.clustering"})
    commit(table, {"domainMetadata": {"domain": "delta.clustering", "configuration": configuration, "removed": False}})


def _in_commit_timestamps(table: Path) -> None:
    add_features(table, reader=[], writer=["inCommitTimestamp"], delta_enableInCommitTimestamps="true")
    version = max(int(one.stem) for one in (table / "_delta_log").glob("*.json")) + 1
    info = {"commitInfo": {"inCommitTimestamp": 1_800_000_000_000, "timestamp": 1, "operation": "WRITE"}}
    (table / "_delta_log" / f"{version:020d}.json").write_text(json.dumps(info))


def _column_with(feature: str | None, **metadata: Any) -> Callable[[Path], None]:
    """A property of a column, with the feature in the protocol, or with an old protocol that lists none."""

    def give(table: Path) -> None:
        schema = _schema_of(table)
        schema["fields"][0]["metadata"] |= {name.replace("_", "."): value for name, value in metadata.items()}
        if feature is None:
            set_protocol(table, {"minReaderVersion": 1, "minWriterVersion": 6})
        else:
            add_features(table, reader=[], writer=[feature])
        _set_schema(table, schema)

    return give


def _constraint(table: Path) -> None:
    column = DeltaTable(table).schema().fields[0].name
    DeltaTable(table).alter.add_constraint({"present": f"`{column}` IS NOT NULL OR `{column}` IS NULL"})


def _append_only(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})


def _change_data_feed(table: Path) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def _reader_version(table: Path) -> None:
    set_protocol(table, {"minReaderVersion": 4, "minWriterVersion": 8, "readerFeatures": [], "writerFeatures": []})


def _classic_checkpoint(table: Path) -> None:
    """A checkpoint without the commits before it."""
    DeltaTable(table).create_checkpoint()
    _drop_commits(table, DeltaTable(table).version())


def _drop_commits(table: Path, until: int) -> None:
    """Commits up to a checkpoint can be deleted. The last one stays: its number is the version."""
    for file in (table / "_delta_log").glob("*.json"):
        if file.stem.isdigit() and int(file.stem) < until:
            file.unlink()


def _checkpoint_in_parts(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    version = DeltaTable(table).version()
    log = table / "_delta_log"
    whole = log / f"{version:020d}.checkpoint.parquet"
    rows = pq.read_table(whole)
    half = rows.num_rows // 2
    for number, part in enumerate((rows.slice(0, half), rows.slice(half)), 1):
        pq.write_table(part, log / f"{version:020d}.checkpoint.{number:010d}.0000000002.parquet")
    whole.unlink()
    (log / "_last_checkpoint").write_text(json.dumps({"version": version, "size": rows.num_rows, "parts": 2}))
    _drop_commits(table, version)


def _compacted_log(table: Path) -> None:
    _change_data_feed(table)
    DeltaTable(table).compact_logs(0, DeltaTable(table).version())
    assert [name for name in os.listdir(table / "_delta_log") if name.endswith(".compacted.json")]


FEATURES = {
    "deletion vectors": Feature("deletionVectors", _deletion_vectors),
    "deletion vectors, none yet": Feature("deletionVectors", _deletion_vectors_enabled),
    "column mapping by name": Feature("columnMapping", _mapped("name", _NAMED)),
    "column mapping by id": Feature("columnMapping", _mapped("id", _NAMED)),
    "column mapping of an old protocol": Feature(
        "columnMapping", _mapped("name", {"minReaderVersion": 2, "minWriterVersion": 5})
    ),
    "type widening": Feature("typeWidening", _widened("typeWidening")),
    "type widening, preview": Feature("typeWidening-preview", _widened("typeWidening-preview")),
    "v2 checkpoints": Feature("v2Checkpoint", _v2_checkpoint),
    "variants": Feature("variantType", _variant("variantType")),
    "variants, preview": Feature("variantType-preview", _variant("variantType-preview")),
    "shredded variants": Feature("variantShredding", _flag("variantShredding")),
    "a catalog's table": Feature("catalogManaged", _flag("catalogManaged")),
    "an unknown reader feature": Feature("somethingNew", _flag("somethingNew")),
    "a new version of the protocol": Feature("version", _reader_version),
    "row tracking": Feature("rowTracking", _row_tracking, readable=True),
    "liquid clustering": Feature("clustering", _clustering, readable=True),
    "in-commit timestamps": Feature("inCommitTimestamp", _in_commit_timestamps, readable=True),
    "identity columns": Feature(
        "identityColumns", _column_with("identityColumns", delta_identity_start=1, delta_identity_step=1), readable=True
    ),
    "identity columns of an old protocol": Feature(
        "identityColumns", _column_with(None, delta_identity_start=1, delta_identity_step=1), readable=True
    ),
    "generated columns": Feature(
        "generatedColumns", _column_with("generatedColumns", delta_generationExpression="1"), readable=True
    ),
    "generated columns of an old protocol": Feature(
        "generatedColumns", _column_with(None, delta_generationExpression="1"), readable=True
    ),
    "invariants": Feature(
        "invariants", _column_with(None, delta_invariants='{"expression": {"expression": "1 > 0"}}'), readable=True
    ),
    "column defaults": Feature(
        "allowColumnDefaults", _column_with("allowColumnDefaults", CURRENT_DEFAULT="1"), readable=True
    ),
    "check constraints": Feature("checkConstraints", _constraint, readable=True),
    "Iceberg compatibility": Feature("icebergCompatV2", _flag("icebergCompatV2", reader=False), readable=True),
    "an unknown writer feature": Feature("somethingNew", _flag("somethingNew", reader=False), readable=True),
    "append only": Feature("appendOnly", _append_only, readable=True, writable=True, removable=False),
    "change data feed": Feature("changeDataFeed", _change_data_feed, readable=True, writable=True),
    "timestamps without zone": Feature("timestampNtz", _flag("timestampNtz"), readable=True, writable=True),
    "a check by vacuum": Feature("vacuumProtocolCheck", _flag("vacuumProtocolCheck")),
    "a checkpoint": Feature("", _classic_checkpoint, readable=True, writable=True),
    "a checkpoint in parts": Feature("", _checkpoint_in_parts, readable=True, writable=True),
    "a compacted log": Feature("", _compacted_log, readable=True, writable=True),
}
