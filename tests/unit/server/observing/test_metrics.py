"""Metrics: the list, the documentation, the dashboard and the alerts name the same ones, and their text is valid."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.quotas import Prefixes, PrefixQuota, TokenQuota, TokenQuotas, Usage
from headwater.outbound import open_outbound
from headwater.server.auth.fetching import KeyKeeper
from headwater.server.auth.grants import GrantedCallers
from headwater.server.compacting.compactor import Compactor
from headwater.server.fencing import Fence
from headwater.server.http import Request, Response
from headwater.server.memory import MemoryMark
from headwater.server.notify import Notifier
from headwater.server.observing import Observer, probes
from headwater.server.observing.access_log import AccessLog
from headwater.server.observing.audit import AuditLog
from headwater.server.observing.metrics import METRICS, OPENMETRICS_TYPE, TEXT_TYPE
from headwater.server.observing.tracing import open_tracer
from headwater.server.observing.upkeep import Upkeep
from headwater.server.routes import ROUTES
from headwater.server.service import Service
from headwater.server.subscriptions import Subscriptions
from headwater.store.contract import Store
from headwater.store.embedded.backup.leases import LeaseHolder
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.opening import open_store
from headwater.store.memory import MemoryStore

ROOT = Path(__file__).resolve().parents[4]
NAMES = {metric.name for metric in METRICS}
SAMPLES = NAMES | {
    f"{metric.name}{suffix}"
    for metric in METRICS
    if metric.kind == "histogram"
    for suffix in ("_bucket", "_count", "_sum")
}
OURS = re.compile(r"\bheadwater_[a-z_]+")


class Connections:
    accepted = 7
    open = 3
    request_bytes = 0
    unread_bytes = 0


async def _nothing() -> None: ...


async def scraped(store: Store, accept: str = "", encoding: str | None = None) -> Response:
    """The answer of a server that has everything there can be."""
    limits = Limits()
    tokens = TokenQuotas([TokenQuota("ci", streams_max=1)])
    usage = Usage(Prefixes([PrefixQuota("tenants/a", streams_max=1)]), tokens)
    engine = Engine(store, limits, usage=usage)
    await engine.start()
    outbound = open_outbound(development=True)
    watchers = (AccessLog("/dev/null", str), open_tracer("http://127.0.0.1:9", 0.0))
    observer = Observer(watchers, AuditLog("/dev/null"))
    observer.connections = Connections()
    for route in ROUTES:
        observer.answered(Request("GET", "/", "", {}, b"", route=route.number, began_s=1e-9), Response(200))
    memory = MemoryMark(1 << 40, _nothing)
    fence = Fence(LeaseHolder(DirectoryTarget(Path("nowhere")), "directory", "server", 15.0), accept=False)
    notifier, upkeep = Notifier(engine, limits, outbound), Upkeep(lambda: [KeyKeeper(outbound)])
    upkeep.certificate_until_s = 1.0
    service = Service(
        engine,
        limits,
        notifier,
        observer=observer,
        memory=memory,
        fence=fence,
        upkeep=upkeep,
        subscriptions=Subscriptions(engine, outbound, GrantedCallers(None)),
        compactor=Compactor(engine, limits),
    )
    try:
        headers = {"accept": accept} if encoding is None else {"accept": accept, "accept-encoding": encoding}
        return await probes.metrics(service, Request("GET", "/metrics", "", headers, b""), "")
    finally:
        observer.watchers[1].close()
        await outbound.aclose()
        await engine.stop()


def text_of(response: Response) -> str:
    return b"".join(response.body).decode()


def test_a_scrape_has_every_metric_of_the_list_and_no_other(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data", Limits())
    state = tmp_path / "data" / "backup" / "0123456789abcdef" / "state.json"  # as a backup leaves it
    state.parent.mkdir(parents=True)
    state.write_text(f'{{"target": "backups", "reached_ms": {int(time.time() - 100) * 1000}, "failures": 3}}')
    text = text_of(asyncio.run(scraped(store)))
    age = re.search(r"^headwater_backup_age_seconds (\S+)$", text, re.MULTILINE)
    assert age is not None
    assert float(age[1]) >= 100
    assert "headwater_backup_failures_total 3.0" in text
    assert "headwater_backups_failing 0.0" in text
    assert "headwater_lease_held 0.0" in text
    families = {family.name: family for family in parse_text(text)}
    names = {name for name in families if name.startswith("headwater_")}
    assert names == {name.removesuffix("_total") for name in NAMES}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = {*metric.labels, "le"} if metric.kind == "histogram" else {*metric.labels}
        assert set().union(*(sample.labels for sample in family.samples)) <= labels
    assert {"process_resident_memory_bytes", "process_open_fds", "python_gc_collections"} <= {*families}


def test_a_store_in_memory_has_no_metrics_of_a_disk() -> None:
    text = text_of(asyncio.run(scraped(MemoryStore())))
    assert 'headwater_info{store="memory"' in text
    assert "headwater_fsync" not in text
    assert "headwater_streams_loaded 0.0" in text


def test_the_number_of_series_is_bounded() -> None:
    text = text_of(asyncio.run(scraped(MemoryStore())))
    assert sum(not line.startswith("#") for line in text.splitlines()) < 60 * len(ROUTES)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", TEXT_TYPE),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT_TYPE),
        ("application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5", OPENMETRICS_TYPE),
        ("application/openmetrics-text; version=not.a.version", OPENMETRICS_TYPE),
    ],
)
def test_both_formats_are_valid(accept: str, content_type: str) -> None:
    response = asyncio.run(scraped(MemoryStore(), accept))
    assert dict(response.headers)["content-type"] == content_type
    parse = parse_openmetrics if content_type == OPENMETRICS_TYPE else parse_text
    assert "headwater_http_requests" in {family.name for family in parse(text_of(response))}


def test_a_scrape_is_compressed() -> None:
    response = asyncio.run(scraped(MemoryStore(), encoding="gzip"))
    assert dict(response.headers)["content-encoding"] == "gzip"
    assert response.body[0][:2] == b"\x1f\x8b"


# What others rely on


def test_the_documentation_has_the_list() -> None:
    table = (ROOT / "docs" / "reference" / "metrics.md").read_text().partition("| --- |")[2]
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.strip().splitlines()[1:]]
    labels = {metric.name: ", ".join(f"`{label}`" for label in metric.labels) for metric in METRICS}
    assert rows == [(f"`{metric.name}`", metric.kind, labels[metric.name], metric.help) for metric in METRICS]
    assert {*OURS.findall((ROOT / "docs" / "observing.md").read_text())} <= SAMPLES


def test_the_alerts_name_metrics_and_are_explained() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    page = (ROOT / "docs" / "observing.md").read_text()
    for rule in rules:
        used = {*OURS.findall(rule["expr"])}
        assert used <= SAMPLES, rule["alert"]
        assert used or "job=" in rule["expr"], rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == "docs/observing.md#alerts"
    assert [rule["alert"] for rule in rules] == re.findall(r"^\| `(Headwater\w+)` \|", page, re.MULTILINE)


def test_the_dashboard_shows_every_metric() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "headwater.json").read_text())
    targets = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    used = {name for expression in targets for name in OURS.findall(expression)}
    assert used <= SAMPLES
    shown = {re.sub("_(bucket|count|sum)$", "", name) for name in used} | used
    assert shown >= NAMES
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len({*ids})
    for expression in targets:
        assert expression.count("(") == expression.count(")"), expression
        assert '$instance"' in expression
