"""Notify: the forms that are POSTed to NURLs.

`surl` is the SURL of the table that may have new rows; a form without it is a handshake. The name of every other
parameter is an event type, and its value is an advertised NURL. Equal forms give equal notifications, so that a
recipient can ignore repeats.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from urllib.parse import quote, unquote_plus

import msgspec

from headwater import limits
from headwater.errors import BodyTooLargeError, InvalidNotifyError, UnsupportedMediaTypeError
from headwater.protocol.tables.content_type import parse_media
from headwater.protocol.tables.paths import url_fault

FORM_TYPE = "application/x-www-form-urlencoded"
SURL = "surl"

_USERINFO = re.compile(r"//[^/?#]*@")  # may contain a password, so it is not shown
_EVENT_TYPE = re.compile(rf"[a-z][a-z0-9_]{{0,{limits.EVENT_TYPE_LENGTH_MAX - 1}}}")


class Notification(msgspec.Struct, frozen=True):
    """A parsed form. `nurls` are distinct pairs of event type and NURL, in the order of the form."""

    surl: str | None = None
    nurls: tuple[tuple[str, str], ...] = ()


def check_form_type(content_type: str | None) -> None:
    media = parse_media(content_type or "")
    if media is None or media.type != FORM_TYPE:
        raise UnsupportedMediaTypeError(f"a Notify POST has the Content-Type {FORM_TYPE}, got {content_type!r:.80}")


def parse_notification(body: bytes, known: Container[str] | None = None) -> Notification:
    """Parse a form. `known` are the event types that the recipient uses; None means all.

    Other parameters are ignored, and their values are not checked.
    """
    if len(body) > limits.NOTIFY_BODY_BYTES_MAX:
        raise BodyTooLargeError(f"a Notify form may have at most {limits.NOTIFY_BODY_BYTES_MAX} bytes")
    surl = None
    nurls: dict[tuple[str, str], None] = {}  # an ordered set
    for name, value in _pairs(body):
        if name == SURL:
            if surl is not None:
                raise InvalidNotifyError("surl is given more than once; send one form for each SURL")
            surl = _url(name, value)
        elif _EVENT_TYPE.fullmatch(name) and (known is None or name in known):
            nurls[name, _url(name, value)] = None
    if len(nurls) > limits.NOTIFY_NURLS_MAX:
        raise InvalidNotifyError(f"a form has at most {limits.NOTIFY_NURLS_MAX} NURLs, this one has {len(nurls)}")
    return Notification(surl, tuple(nurls))


def _pairs(body: bytes) -> Iterator[tuple[str, str]]:
    """The names and values of a form. Invalid UTF-8 is replaced, which makes a URL that contains it invalid."""
    for pair in body.decode(errors="replace").split("&"):
        name, _, value = pair.partition("=")
        yield unquote_plus(name), unquote_plus(value)


def _url(name: str, value: str) -> str:
    fault = url_fault(value)
    if fault is not None:
        shown = _USERINFO.sub("//", value)[:80]
        raise InvalidNotifyError(f"the value of {name} is not a valid URL: {fault}: {shown!r}")
    return value


def format_notification(notification: Notification) -> bytes:
    """Format a notification. Its URLs are checked, because a recipient refuses the whole form for one invalid URL."""
    pairs = [] if notification.surl is None else [(SURL, notification.surl)]
    for name, nurl in notification.nurls:
        if name == SURL or not _EVENT_TYPE.fullmatch(name):
            raise InvalidNotifyError(f"an event type is made of a-z, 0-9 and _, and is not surl, got {name[:80]!r}")
        pairs.append((name, nurl))
    return "&".join([f"{name}={quote(_url(name, value), safe=':/')}" for name, value in pairs]).encode()
