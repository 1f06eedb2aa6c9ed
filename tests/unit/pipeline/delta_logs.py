"""Delta tables as other writers leave them: commits that give a table features, and deletion vectors.

delta-rs writes none of these, so the commits are written by hand, as the Delta protocol defines them.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

ROWS = pa.table({"key": ["a", "b", "c", "d", "e"], "n": [1, 2, 3, 4, 5]})


def table_at(path: Path) -> Path:
    write_deltalake(str(path), ROWS)
    return path


def commit(table: Path, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    version = max(int(file.stem) for file in log.glob("*.json") if file.stem.isdigit()) + 1
    info = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "UPDATE"}}
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in (info, *actions)))


def last_action(table: Path, name: str) -> dict[str, Any]:
    files = sorted(file for file in (table / "_delta_log").glob("*.json") if file.stem.isdigit())
    actions = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return dict([action[name] for action in actions if name in action][-1])


def add_features(table: Path, *, reader: list[str], writer: list[str], **properties: str) -> None:
    """Give the table features, and properties whose names are written with `_` for `.`."""
    metadata = last_action(table, "metaData")
    metadata["configuration"] |= {name.replace("_", "."): value for name, value in properties.items()}
    before = last_action(table, "protocol")
    reader = sorted({*reader, *before.get("readerFeatures", ())})
    writer = sorted({*writer, *before.get("writerFeatures", ())})
    protocol: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
    protocol |= {"readerFeatures": reader} if reader else {}
    protocol |= {"writerFeatures": sorted({*reader, *writer})}
    commit(table, {"protocol": protocol}, {"metaData": metadata})


def set_protocol(table: Path, protocol: dict[str, Any]) -> None:
    commit(table, {"protocol": protocol})


def delete_rows(table: Path, first: int, second: int) -> None:
    """Delete two rows of the last file with a deletion vector in the log."""
    add_features(table, reader=["deletionVectors"], writer=["invariants"])
    added = last_action(table, "add")
    bitmap = struct.pack("<iqi", 1681511377, 1, 0) + struct.pack("<IIHHIHH", 12346, 1, 0, 1, 16, first, second)
    vector = {"storageType": "i", "pathOrInlineDv": _z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": 2}
    now_ms = int(time.time() * 1000)
    removed = {name: added[name] for name in ("path", "partitionValues")}
    removed |= {"dataChange": True, "deletionTimestamp": now_ms}
    commit(table, {"remove": removed}, {"add": {**added, "deletionVector": vector}})


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def _z85(data: bytes) -> str:
    """Base 85 with the alphabet of ZeroMQ; that of the standard library before 3.13 is another one."""
    return base64.b85encode(data).decode().translate(str.maketrans(_B85, _Z85))
