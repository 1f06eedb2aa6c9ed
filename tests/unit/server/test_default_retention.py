"""Defaults of retention: rules, which of them applies, and to what."""

from __future__ import annotations

import re

import pytest

from headwater.engine import Engine
from headwater.errors import ConfigurationError
from headwater.log.commands import Create, ForkRequest
from headwater.log.content import ContentKind
from headwater.log.retention import KEEP_ALL, Retention
from headwater.protocol.tables.paths import log_path, nurls_log_path
from headwater.server.default_retention import parse_rules
from headwater.store.memory import MemoryStore
from tests import virtual_time

RULES = (
    "logs/audit/** forever",
    "logs/** seconds=60 bytes=1000",
    "/v1/table/feeds/* messages=5",
    "/v1/stream/state/** compact=true compact_after=3600",
)


@pytest.mark.parametrize(
    ("path", "retention"),
    [
        ("logs/a", Retention(seconds=60, bytes=1000)),
        ("logs/a/b", Retention(seconds=60, bytes=1000)),
        (log_path("logs/a"), Retention(seconds=60, bytes=1000)),
        ("logs/audit/a", KEEP_ALL),
        ("logs", None),
        ("feeds/a", None),
        (log_path("feeds/a"), Retention(messages=5)),
        (log_path("feeds/a/b"), None),
        (nurls_log_path(log_path("logs/a")), None),
        ("state/a", Retention(compact=True, compact_after_s=3600)),
        (log_path("state/a"), None),
    ],
)
def test_the_first_rule_that_covers_a_path_applies(path: str, retention: Retention | None) -> None:
    assert parse_rules(RULES).of(path) == retention


def test_streams_of_the_server_itself_are_kept() -> None:
    everything = parse_rules(["** seconds=1"])
    assert everything.of("a") == everything.of(log_path("a")) == Retention(seconds=1)
    assert everything.of("\x02active/7/1-2") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no path"),
        ("logs/**", "no limits"),
        ("logs/** secs=5", "secs=5"),
        ("logs/** seconds=5 seconds=6", "seconds=6"),
        ("logs/** seconds=5 forever", "forever"),
        ("logs/** seconds", "seconds needs a value"),
        ("logs/** seconds=", "seconds needs a value"),
        ("logs/** seconds=7d", "'7d'"),
        ("logs/** bytes=0", "'0'"),
        ("logs/** compact=yes", "compact must be true or false"),
        ("logs/** compact_after=5", "compact_after needs compact=true"),
        ("/logs/** seconds=5", "/v1/stream/"),
        ("[z-a] seconds=5", "not a valid glob"),
    ],
)
def test_bad_rules_are_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_rules(["a seconds=1", text])


def test_a_default_is_that_of_new_streams_only() -> None:
    async def main() -> None:
        rules = parse_rules(["** seconds=60 compact=true"])
        engine = Engine(MemoryStore(), default_retention=lambda path: rules.of(path))
        await engine.start()
        kept = Retention(seconds=60, compact=True)

        async def create(path: str, content_type: str = "application/json", **options: object) -> Retention | None:
            made = Create(path=path, now_ms=engine.now_ms(), content_type=content_type, **options)  # type: ignore[arg-type]
            return (await engine.execute(made)).retention

        assert await create("a") == kept
        assert await create("a") == kept  # it exists
        assert await create("text", "text/plain") == Retention(seconds=60)  # it cannot be compacted
        assert await create(log_path("t"), "text/sequence", kind=ContentKind.ROWS) == kept
        assert await create("own", retention=Retention(bytes=5)) == Retention(bytes=5)
        assert await create("all", retention=KEEP_ALL) is None
        assert await create("fork", fork=ForkRequest("own")) == kept
        await engine.retain("a", (("seconds", None), ("compact", False)))
        assert await create("a") is None
        with pytest.raises(ConfigurationError):
            await create("a", retention=Retention(seconds=60))
        rules = parse_rules(["** bytes=5"])
        assert (await engine.info("own")).retention == Retention(bytes=5)
        assert (await engine.info("text")).retention == Retention(seconds=60)
        await engine.stop()

    virtual_time.run(main())
