"""The schedule of retries, without a clock and without a network."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headwater.limits import KEY_BYTES_MAX, NURL_SEEN_MS, URL_LENGTH_MAX, Limits
from headwater.server.notify.nurl import NurlRecord, decode, encode, failed, is_given_up, seen_again, succeeded, wait_s

LIMITS = Limits()
NURL = NurlRecord("\x01prices", 7, "rows", "https://peer.example/nurl", "https://us.example", 1_000, 1_000, 5)


def test_the_wait_doubles_up_to_a_bound() -> None:
    nurl, now_ms, waits = NURL, 10_000, []
    for _ in range(16):
        nurl = failed(nurl, now_ms, LIMITS, 1.0)
        waits.append((nurl.next_attempt_ms - now_ms) / 1000)
        now_ms = nurl.next_attempt_ms
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == LIMITS.notify_retry_max_s
    assert (nurl.failures, nurl.failing_since_ms) == (16, 10_000)


@given(st.integers(0, 2_000), st.floats(0, 1, exclude_max=True))
def test_a_part_of_the_wait_is_random(failures: int, chance: float) -> None:
    nurl = msgspec.structs.replace(NURL, failures=failures, failing_since_ms=1_000)
    whole = failed(nurl, 2_000, LIMITS, 1.0).next_attempt_ms - 2_000
    wait = failed(nurl, 2_000, LIMITS, chance).next_attempt_ms - 2_000
    assert whole / 2 - 1 <= wait <= whole


def test_a_nurl_is_given_up_after_a_day_of_failures() -> None:
    nurl = failed(failed(NURL, 10_000, LIMITS, 0.5), 20_000, LIMITS, 0.5)
    assert not is_given_up(nurl, 10_000 + 86_399_999, LIMITS)
    assert is_given_up(nurl, 10_000 + 86_400_000, LIMITS)
    assert not is_given_up(succeeded(nurl, 6), 10_000 + 86_400_000, LIMITS)


def test_a_clock_that_was_set_back_does_not_silence_a_nurl() -> None:
    year_ms = 365 * 86_400_000
    nurl = failed(failed(NURL, year_ms, LIMITS, 1.0), year_ms, LIMITS, 1.0)
    assert wait_s(nurl, year_ms, LIMITS) == 2 * LIMITS.notify_retry_s
    assert wait_s(nurl, 10_000, LIMITS) == LIMITS.notify_retry_max_s
    assert wait_s(nurl, 2 * year_ms, LIMITS) == 0
    assert is_given_up(failed(nurl, 10_000, LIMITS, 1.0), 10_000 + 86_400_000, LIMITS)


def test_a_success_forgets_the_failures() -> None:
    done = succeeded(failed(NURL, 10_000, LIMITS, 0.5), 9)
    assert (done.failures, done.failing_since_ms, done.next_attempt_ms, done.notified_seqno) == (0, 0, 0, 9)


def test_a_repeat_is_recorded_only_if_something_changes() -> None:
    assert seen_again(NURL, 1_000 + NURL_SEEN_MS - 1, NURL.base) is NURL
    assert seen_again(NURL, 1_000 + NURL_SEEN_MS, NURL.base).last_seen_ms == 1_000 + NURL_SEEN_MS
    assert seen_again(NURL, 2_000, "https://other.example").base == "https://other.example"
    again = seen_again(failed(NURL, 1_500, LIMITS, 0.5), 2_000, NURL.base)
    assert (again.failures, again.next_attempt_ms, again.first_seen_ms) == (0, 0, 1_000)


def test_documents_and_keys() -> None:
    long = NurlRecord(
        "\x01prices", 2**63 - 1, "e" * 64, "https://peer.example/".ljust(URL_LENGTH_MAX, "x"), "", 0, 0, 0
    )
    for nurl in (NURL, long):
        assert decode(encode(nurl)) == nurl
        assert len(nurl.key) < 200
        assert len(nurl.name) < KEY_BYTES_MAX
    assert NURL.key.startswith("nurl/7/rows/")
    assert NURL.shown == NURL.url
