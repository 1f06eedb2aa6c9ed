"""Where jobs are, without Spark: by checkpoints as Spark and `publish` write them, and what the server says."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.client import Client
from tests.command_line import invoke
from tests.servers import Server
from tests.unit.pipeline.foreign_features import FEATURES

JOBS = """
url = "{url}"

[jobs.raw]
job = "archive"
streams = "status/*"
table = "{here}/raw"

[jobs.prices]
job = "publish"
table = "{here}/prices"
checkpoint = "{here}/published"
keys = "item"
to-table = "prices"

[jobs.bootstrap]
job = "snapshot"
streams = "status/a"

[jobs.back]
job = "replay"
table = "{here}/raw"
"""


def _status(file: Path) -> list[dict[str, object]]:
    result = invoke(["pipeline", "status", str(file), "--json"])
    assert result.exit_code == 0, result.output
    statuses: list[dict[str, object]] = json.loads(result.output)
    return statuses


def test_where_jobs_are(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(JOBS.format(url=server.url, here=tmp_path))
    with Client(server.url) as client:
        for name in ("a", "b"):
            client.stream(f"status/{name}").create(messages=["x" * 8])
        tail = client.stream("status/a").head().tail_offset
    size = int(tail.partition("_")[2])
    raw, prices, bootstrap, back = _status(file)
    assert raw == {
        "name": "raw",
        "job": "archive",
        "position": "not started",
        "lag_bytes": {"status/a": size, "status/b": size},
        "lag_versions": None,
    }
    assert prices["position"] == f"not started; there is no Delta table at {tmp_path}/prices"
    assert prices["lag_versions"] is None
    assert bootstrap["lag_bytes"] == {"status/a": size}
    assert back["position"] == "keeps no position: it compares"

    checkpoint = tmp_path / "raw.checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"x"}')
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps({'status/a': tail})}")
    (checkpoint / "offsets" / "1").write_text("v1\n{}\n{}")
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    for price in (1.0, 2.0):
        write_deltalake(tmp_path / "prices", pa.table({"item": ["tea"], "price": [price]}), mode="overwrite")
    (tmp_path / "published").mkdir()
    state = {"id": "x", "table": "y", "target": "the table prices", "published": 0, "publishing": 1}
    (tmp_path / "published" / "published.json").write_text(json.dumps(state))
    raw, prices, *_ = _status(file)
    assert raw["position"] == "batch 0, another one begun"
    assert raw["lag_bytes"] == {"status/a": 0, "status/b": size}
    assert (prices["position"], prices["lag_versions"]) == ("version 0", 1)
    shown = invoke(["pipeline", "status", str(file)]).output
    assert f"{size} bytes" in shown
    assert "1 versions" in shown


@pytest.mark.parametrize(("url", "code"), [("http://127.0.0.1:9", 1), ("nonsense", 2)])
def test_a_server_that_is_not_there(tmp_path: Path, url: str, code: int) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(JOBS.format(url=url, here=tmp_path))
    result = invoke(["pipeline", "status", str(file)])
    assert result.exit_code == code
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("feature", [name for name, feature in FEATURES.items() if not feature.readable])
def test_a_table_with_an_unknown_feature_is_named_beside_other_jobs(
    server: Server, tmp_path: Path, feature: str
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(JOBS.format(url=server.url, here=tmp_path))
    write_deltalake(str(tmp_path / "prices"), pa.table({"item": ["tea", "oil"], "price": [3, 9]}))
    FEATURES[feature].give(tmp_path / "prices")
    prices = _status(file)[1]
    assert FEATURES[feature].name in str(prices["position"])
    assert prices["lag_versions"] is None
