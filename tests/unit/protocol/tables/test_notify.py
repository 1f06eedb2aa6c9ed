"""Notify forms and event types, as in the STP specification."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import BodyTooLargeError, InvalidNotifyError, UnsupportedMediaTypeError
from headwater.protocol.tables.notify import Notification, check_form_type, format_notification, parse_notification
from headwater.protocol.tables.paths import url_fault

STATE = b"surl=https://example.com/state&match=https://example.com/match_nurl"
HANDSHAKE = b"manifest_nurl=https://example.com/manifest_nurl"
PARTS = st.text(st.sampled_from("abz09-._~/?&=+%,;:@!$'()*[]")).map(lambda text: text.replace("%", "%2F"))
URLS = st.builds(lambda host, rest: f"https://{host}/{rest}", st.sampled_from(["a.b", "[::1]:8", "10.0.0.1:80"]), PARTS)
TYPES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name != "surl")


def test_participants_may_expose_nurls_that_accept_forms() -> None:
    """Participants MAY expose Notify URLs (NURLs) that accept HTTP POSTs with application/x-www-form-urlencoded."""
    check_form_type("application/x-www-form-urlencoded")
    check_form_type("Application/X-WWW-Form-Urlencoded; charset=UTF-8")
    for other in (None, "", "application/json", "multipart/form-data; boundary=x"):
        with pytest.raises(UnsupportedMediaTypeError, match="application/x-www-form-urlencoded"):
            check_form_type(other)


def test_the_state_notification_of_the_seed() -> None:
    notification = Notification("https://example.com/state", (("match", "https://example.com/match_nurl"),))
    assert parse_notification(STATE) == notification
    assert format_notification(notification) == STATE


def test_if_surl_is_absent_the_post_is_a_handshake() -> None:
    """If `surl` is absent, the Notify POST is treated as NURL advertisement / handshake only."""
    notification = Notification(None, (("manifest_nurl", "https://example.com/manifest_nurl"),))
    assert parse_notification(HANDSHAKE) == notification
    assert format_notification(notification) == HANDSHAKE
    assert parse_notification(b"") == Notification()


@pytest.mark.parametrize(
    "body",
    [
        STATE + b"&surl=https://example.com/other",
        STATE + b"&surl=https://example.com/state",
        STATE + b"&s%75rl=http://x/",
    ],
)
def test_surl_must_appear_exactly_once(body: bytes) -> None:
    """`surl` MAY be present. If present, it MUST appear exactly once ..."""
    with pytest.raises(InvalidNotifyError, match="surl is given more than once"):
        parse_notification(body)


@pytest.mark.parametrize("value", [b"", b"state", b"/state", b"ftp://example.com/state", b"https://", b"%ff", b"\xff"])
def test_surl_must_be_a_valid_surl(value: bytes) -> None:
    """... and MUST be a valid STP SURL."""
    with pytest.raises(InvalidNotifyError, match="surl is not a valid URL"):
        parse_notification(b"surl=" + value)


@pytest.mark.parametrize("pair", [b"match=", b"match", b"match=here", b"match=javascript:alert(1)", b"m=http://a b/"])
def test_all_other_parameters_must_have_values_that_are_valid_nurls(pair: bytes) -> None:
    """All other parameters MUST have values that are valid Notify URLs (NURLs)."""
    with pytest.raises(InvalidNotifyError, match="not a valid URL"):
        parse_notification(b"surl=https://example.com/state&" + pair)


def test_unknown_parameter_names_must_be_ignored() -> None:
    """Unknown parameter names MUST be ignored."""
    assert parse_notification(STATE + b"&later=nonsense", known={"match"}) == parse_notification(STATE)
    assert parse_notification(STATE, known=()) == Notification("https://example.com/state")


@pytest.mark.parametrize(
    "name", [b"", b"Match", b"9a", b"_a", b"a-b", b"a.b", b"caf%C3%A9", b"%ff", b"SURL", b"a" * 65, b"a%0A"]
)
def test_each_key_is_an_event_type_token(name: bytes) -> None:
    """Each key is an `event_type` token matching: `[a-z][a-z0-9_]*`. Other names are unknown, so ignored."""
    assert parse_notification(STATE + b"&" + name + b"=nonsense") == parse_notification(STATE)


def test_additional_parameters_may_advertise_event_specific_nurls() -> None:
    """Additional parameters MAY advertise event-specific callback NURLs."""
    body = b"manifest_notify=https://a.example/m&grant_notify=https://a.example/g&grant_notify=https://a.example/g2"
    assert parse_notification(body).nurls == (
        ("manifest_notify", "https://a.example/m"),
        ("grant_notify", "https://a.example/g"),
        ("grant_notify", "https://a.example/g2"),
    )


def test_notify_posts_may_repeat_and_must_be_treated_as_idempotent() -> None:
    """Notify POSTs MAY repeat and MUST be treated as idempotent: repeats are equal, within a form they are one."""
    assert parse_notification(STATE) == parse_notification(STATE)
    assert hash(parse_notification(STATE)) == hash(parse_notification(STATE))
    assert parse_notification(HANDSHAKE + b"&" + HANDSHAKE) == parse_notification(HANDSHAKE)


def test_forms_are_bounded() -> None:
    many = b"&".join(b"e%d=http://a/" % number for number in range(limits.NOTIFY_NURLS_MAX + 1))
    with pytest.raises(InvalidNotifyError, match="has at most 64 NURLs"):
        parse_notification(many)
    with pytest.raises(BodyTooLargeError):
        parse_notification(b"&" * (limits.NOTIFY_BODY_BYTES_MAX + 1))


@given(st.none() | URLS, st.lists(st.tuples(TYPES, URLS), unique=True, max_size=5))
def test_forms_round_trip(surl: str | None, nurls: list[tuple[str, str]]) -> None:
    notification = Notification(surl, tuple(nurls))
    assert parse_notification(format_notification(notification)) == notification


def test_an_invalid_form_is_not_sent() -> None:
    for name, url in (("surl", "http://a/"), ("Match", "http://a/"), ("match", "a"), ("match", "http://a/ b")):
        with pytest.raises(InvalidNotifyError):
            format_notification(Notification(None, ((name, url),)))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "http://localhost:4437/v1/table/prices?since_id=0",
        "HTTPS://EXAMPLE.com/%C3%A9",
        "https://[2001:db8::1]:8443/x",
        "https://a_b.example/?q=a@b",
    ],
)
def test_valid_urls(url: str) -> None:
    assert url_fault(url) is None


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "does not begin with"),
        ("//example.com/", "does not begin with"),
        ("https:example.com", "does not begin with"),
        ("https:/example.com", "does not begin with"),
        ("file:///etc/passwd", "does not begin with"),
        ("https:///x", "no valid host"),
        ("https://:80/", "no valid host"),
        ("https://?x", "no valid host"),
        ("https://a:b/", "no valid host"),
        ("https://a:/", "no valid host"),
        ("https://%65xample.com/", "no valid host"),
        ("https://user@example.com/", "contains a user name"),
        ("https://user:secret@example.com/", "contains a user name"),
        ("https://@example.com/", "contains a user name"),
        ("https://a/#", "fragment"),
        ("https://a/#x", "fragment"),
        ("https://a:0/", "port"),
        ("https://a:65536/", "port"),
        ("https://[::1/", "host is invalid"),
        ("https://[::1]x/", "host"),
        ("https://a/\n", "percent-encoded"),
        ("https://a/\x00", "percent-encoded"),
        (" https://a/", "percent-encoded"),
        ("https://a\\@b/", "percent-encoded"),
        ("https://é.example/", "percent-encoded"),
        ("https://a/%zz", "percent-encoded"),
        ("https://a/" + "x" * 2048, "longer"),
    ],
)
def test_invalid_urls(url: str, fault: str) -> None:
    assert fault in (url_fault(url) or "")


FORM_PARTS = [
    b"surl",
    b"rows",
    b"Rows",
    b"=",
    b"&",
    b"%",
    b"%26",
    b"+",
    b"\xff",
    b"https://a.example/x",
    b"http://[::1]/",
    b"x",
]
FORM_PARTS += [
    b"surl=https://a.example/&",
    b"rows=https%3A%2F%2Fa.example%2F%3Fa%3Db&",
    b"9=x&",
    b"javascript:",
    b"@",
    b"#",
]


@given(st.lists(st.sampled_from(FORM_PARTS)))
def test_any_form_is_a_notification_that_round_trips_or_an_error(parts: list[bytes]) -> None:
    body = b"".join(parts)
    names = [unquote_plus(pair.partition("=")[0]) for pair in body.decode(errors="replace").split("&")]
    try:
        notification = parse_notification(body)
    except InvalidNotifyError:
        return
    assert names.count("surl") == (0 if notification.surl is None else 1)
    assert {name for name, _ in notification.nurls} == {
        name for name in names if re.fullmatch("(?!surl$)[a-z][a-z0-9_]*", name)
    }
    assert parse_notification(format_notification(notification)) == notification


@pytest.mark.parametrize("url", ["https://user:secret@example.com/", "http://u:secret@@h/", "https://user:secret@h?q"])
def test_a_password_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidNotifyError) as refused:
        parse_notification(b"rows=" + url.encode())
    assert "secret" not in str(refused.value)
