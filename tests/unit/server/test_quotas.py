from __future__ import annotations

import pytest

from headwater.errors import TooManyRequestsError
from headwater.limits import Limits
from headwater.log.quotas import Prefixes, PrefixQuota, TokenQuota, TokenQuotas
from headwater.server.auth.callers import Caller
from headwater.server.http import Request
from headwater.server.live_places import LivePlaces
from headwater.server.quotas import QuotaRates, parse_quota, parse_quotas


def test_a_quota_as_the_option_writes_it() -> None:
    text = "/tenants/%C3%A9/ streams=1 bytes=2  appends_per_s=3 live_readers=4"
    assert parse_quota(text) == PrefixQuota("tenants/é", 1, 2, 3, 4)
    assert parse_quota("a bytes=2") == PrefixQuota("a", bytes_max=2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "no limits"),
        ("a streams", "whole number"),
        ("a streams=0", "more than 0"),
        ("a streams=-1", "more than 0"),
        ("a streams=1e9", "whole number"),
        ("a streams=1 streams=2", "at most once"),
        ("a stream=1", "expected each of streams, bytes"),
        ("a streams=" + "9" * 5000, "at most"),
        ("/ streams=1", "not the prefix of a path"),
        ("a/../b streams=1", "not the prefix of a path"),
    ],
)
def test_a_quota_that_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_quota(text)


def test_a_prefix_has_one_quota() -> None:
    with pytest.raises(ValueError, match="two quotas"):
        parse_quotas(["a streams=1", "a/ bytes=1"])


def test_the_rate_of_appends_below_prefixes() -> None:
    now_s = [100.0]
    prefixes = Prefixes([PrefixQuota("a", appends_per_s=2), PrefixQuota("a/b", appends_per_s=1), PrefixQuota("c", 1)])
    rates = QuotaRates(prefixes, now_s=lambda: now_s[0])
    rates.take("a/b/1")
    with pytest.raises(TooManyRequestsError, match="below 'a/b'") as caught:
        rates.take("a/b/2")
    assert caught.value.retry_after_s == pytest.approx(1.0)
    rates.take("\x01a/t")  # the refused append took nothing
    with pytest.raises(TooManyRequestsError, match="below 'a'"):
        rates.take("a")
    for _ in range(10):
        rates.take("c")
        rates.take("other")
    now_s[0] += 1.0
    rates.take("a/b/2")


def test_live_readers_below_a_prefix() -> None:
    a, b = PrefixQuota("a", live_readers_max=1), PrefixQuota("b", streams_max=1)
    places = LivePlaces(Prefixes([a, b]))
    request = Request("GET", "/", "", {}, b"", peer="1.2.3.4")
    first = places.claim(Limits(), request, "a/1")
    assert first is not None
    with first:
        assert places.of(a) == 1
        with pytest.raises(TooManyRequestsError, match="below 'a'"):
            places.claim(Limits(), request, "\x01a/2")
        assert places.claim(Limits(), request, "other") is None
        for _ in range(3):  # counted, and not limited
            place = places.claim(Limits(), request, "b/1")
            assert place is not None
            place.take()
        assert places.of(b) == 3
    assert places.of(a) == 0


def test_the_rate_of_appends_of_a_token() -> None:
    now_s = [100.0]
    tokens = TokenQuotas([TokenQuota("ci", appends_per_s=1)])
    rates = QuotaRates(Prefixes([PrefixQuota("a", appends_per_s=1)]), tokens, lambda: now_s[0])
    rates.foresee("b", "ci")  # not counted
    rates.take("b", "ci")
    with pytest.raises(TooManyRequestsError, match="of the token 'ci'"):
        rates.foresee("c", "ci")
    with pytest.raises(TooManyRequestsError, match="of the token 'ci'"):
        rates.take("a/1", "ci")
    rates.take("a/1", "other")  # the refused append took nothing of the prefix
    rates.take("b", "other")
    tokens.use([TokenQuota("ci", appends_per_s=1, bytes_max=7)])  # the rate is the same
    with pytest.raises(TooManyRequestsError):
        rates.take("b", "ci")
    tokens.use([TokenQuota("ci", appends_per_s=2)])
    for _ in range(2):
        rates.take("b", "ci")
    tokens.use([])
    for _ in range(10):
        rates.take("b", "ci")


def test_live_readers_of_a_token() -> None:
    quota = TokenQuota("ci", live_readers_max=1)
    tokens = TokenQuotas([quota])
    places = LivePlaces(None, tokens)
    mine, theirs = Request("GET", "/", "", {}, b""), Request("GET", "/", "", {}, b"")
    mine.caller = Caller("ci", None)
    mine.caller.owner = "ci"
    theirs.caller = Caller("ci", None)  # a signed URL, or a JWT of this name
    first = places.claim(Limits(), mine, "a")
    assert first is not None
    with first:
        with pytest.raises(TooManyRequestsError, match="of the token 'ci'"):
            places.claim(Limits(), mine, "b")
        assert places.claim(Limits(), theirs, "a") is None
        tokens.use([])
        assert places.claim(Limits(), mine, "b") is None
    assert places.of(quota) == 0
