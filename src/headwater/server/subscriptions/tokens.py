"""Tokens of wakes: signed by the server, for one wake of one subscription. They are sent only in `Authorization`."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

from headwater.errors import WakeTokenError

_SEPARATOR = "."
_LENGTH_MAX = 1_024


class WakeToken(msgspec.Struct, frozen=True, array_like=True):
    life: str
    generation: int
    wake_id: str
    until_s: int  # when it has expired, unless its wake is still in flight


def format_token(secret: bytes, token: WakeToken) -> str:
    payload = msgspec.msgpack.encode(token)
    return f"{_encoded(payload)}{_SEPARATOR}{_encoded(_digest(secret, payload))}"


def parse_token(secret: bytes, text: str) -> WakeToken:
    """The token in a text. WakeTokenError unless this server has signed it."""
    payload, _, digest = text[:_LENGTH_MAX].partition(_SEPARATOR)
    try:
        data = _decoded(payload)
        if hmac.compare_digest(_digest(secret, data), _decoded(digest)):
            return msgspec.msgpack.decode(data, type=WakeToken)
    except (binascii.Error, ValueError):
        pass
    raise WakeTokenError("the token is not one of this subscription")


def bearer_of(authorization: str | None) -> str:
    """The token in an `Authorization` header."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise WakeTokenError("send the token of the wake as Authorization: Bearer TOKEN")
    return token.strip()


def _digest(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, payload, hashlib.sha256)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
