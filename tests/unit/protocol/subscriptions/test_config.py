from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import InvalidSubscriptionError
from headwater.protocol.subscriptions.config import (
    Ack,
    AckBody,
    SubscriptionConfig,
    decode,
    parse_config,
    parse_id,
    parse_members,
    quote_id,
)

PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wake"}
HOOK = {"type": "webhook", "streams": ["a"], "webhook": {"url": "https://example.org/"}}


def config(**members: Any) -> SubscriptionConfig:
    return parse_config(json.dumps(members).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PULL, {**PULL, "pattern": "/a/*/"}),
        (PULL, {**PULL, "lease_ttl_ms": limits.LEASE_TTL_DEFAULT_MS}),
        (PULL, {**PULL, "streams": None, "description": None, "webhook": None}),
        (PULL, {**PULL, "webhook": {"url": "https://unused.example/"}}),
        (PULL, {**PULL, "unknown": 1}),
        ({**PULL, "streams": ["b", "a"]}, {**PULL, "streams": ["/a/", "b", "a"]}),
        (HOOK, {**HOOK, "wake_stream": "unused"}),
    ],
)
def test_equivalent_configurations_have_one_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert config(**one) == config(**other)
    assert config(**one).hash == config(**other).hash


def test_different_configurations_have_different_hashes() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"pattern": "a/**"},
        {"pattern": None, "streams": ["a/*"]},
        {"streams": ["a"]},
        {"streams": ["a", "b"]},
        {"streams": ["a/b"]},
        {"wake_stream": "other"},
        {"lease_ttl_ms": 1_000},
        {"description": ""},
        {"description": "a"},
    ]
    hashes = [config(**{**PULL, **change}).hash for change in changes]
    hashes += [config(**HOOK).hash, config(**{**HOOK, "webhook": {"url": "https://example.org/2"}}).hash]
    assert len(set(hashes)) == len(hashes)


@given(st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable() and "/" not in text))
def test_an_id_survives_a_url(name: str) -> None:
    if name in (".", ".."):
        return
    assert parse_id(quote_id(name)) == name
    assert parse_id(quote(name, safe="")) == name


@pytest.mark.parametrize("raw", ["", ".", "..", "%2E%2E", "a%2Fb", "%00", "%0A", "%FF", "x" * 257])
def test_an_invalid_id_is_refused(raw: str) -> None:
    with pytest.raises(InvalidSubscriptionError):
        parse_id(raw)


def test_a_request_names_a_bounded_number_of_streams() -> None:
    most = limits.SUBSCRIPTION_MEMBERS_PER_REQUEST
    paths = [f"s/{number}" for number in range(most)]
    assert len(parse_members(json.dumps({"streams": [*paths, "s/0"]}).encode())) == most
    with pytest.raises(InvalidSubscriptionError, match="at most"):
        parse_members(json.dumps({"streams": [*paths, "one-more"]}).encode())


def test_an_ack_names_its_stream_in_one_of_two_ways() -> None:
    body = decode(
        b'{"wake_id":"w","generation":1,"acks":[{"stream":"/a/","offset":"1"},{"path":"b","offset":"2"}]}', AckBody
    )
    assert [(ack.member, ack.offset) for ack in body.acks] == [("a", "1"), ("b", "2")]
    with pytest.raises(InvalidSubscriptionError):
        _ = Ack("1").member


@given(st.binary(max_size=60))
def test_any_body_is_a_configuration_or_refused(body: bytes) -> None:
    try:
        parse_config(body)
    except InvalidSubscriptionError:
        return
    raise AssertionError("a configuration by chance")
