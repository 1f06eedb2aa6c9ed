"""Signed URLs: read one stream or table, or append to it, without a token for a limited time. An EventSource cannot
send headers, and a page must not have a token that can do more.

    /v1/stream/prices?offset=-1&live=sse&signed=1767225600.3f9a….mac
    /v1/stream/orders?signed=append.1767225600.3f9a….mac

The signature covers the action, the path in the log, the expiry time and the signer. It allows GET and HEAD of that
path, or POST without a close, with any other parameters. A URL that a token signed is valid as long as the token is
valid and may do the same. A URL that a JWT signed expires with the JWT.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import NamedTuple

from headwater.errors import UnauthorizedError
from headwater.limits import AUTH_SECRET_BYTES_MIN
from headwater.server.auth.scopes import Action

PARAMETER = "signed"

ACTIONS = {"GET": Action.READ, "HEAD": Action.READ, "POST": Action.APPEND}  # what a signature can allow, by method

_SIGNED = re.compile(r"(append\.)?([0-9]{1,11})\.([A-Za-z0-9_-]{1,1024})\.([A-Za-z0-9_-]{43})")
_PARAMETER = re.compile(rf"(?:^|&){PARAMETER}=([^&]*)")
_PURPOSES = {Action.READ: b"headwater signed url 1", Action.APPEND: b"headwater signed append 1"}


class Signature(NamedTuple):
    until_s: int
    signer: str  # the id of a token, or the id of an issuer, `:` and the name of the JWT's identity
    action: Action = Action.READ


def sign(secret: bytes, path: str, signature: Signature) -> str:
    """Return the value of the query parameter."""
    until_s, _, action = signature
    signer = _encoded(signature.signer.encode())
    prefix = "append." if action is Action.APPEND else ""
    return f"{prefix}{until_s}.{signer}.{_mac(secret, action, path, until_s, signer)}"


def verify(secret: bytes, path: str, value: str, now_s: float) -> Signature:
    match = _SIGNED.fullmatch(value)
    if match is None:
        raise UnauthorizedError("the signature of the URL is incomplete")
    action = Action.APPEND if match[1] else Action.READ
    until_s = int(match[2])
    if not hmac.compare_digest(match[4], _mac(secret, action, path, until_s, match[3])):
        raise UnauthorizedError("the signature of the URL is wrong; it holds for one path")
    if until_s <= now_s:
        raise UnauthorizedError("the signed URL has expired")
    try:
        return Signature(until_s, base64.urlsafe_b64decode(match[3] + "==").decode(), action)
    except (binascii.Error, UnicodeDecodeError):
        raise UnauthorizedError("the signature of the URL is incomplete") from None


def take_signature(query: str) -> tuple[str, str | None]:
    """Split a query into the query without its signature, which may be logged, and the signature."""
    signatures = _PARAMETER.findall(query)
    if not signatures:
        return query, None
    return _PARAMETER.sub("", query).removeprefix("&"), signatures[0] if len(signatures) == 1 else ""


def parse_secret(text: str) -> bytes:
    try:
        secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < AUTH_SECRET_BYTES_MIN:
        raise ValueError(f"signing_secret is {AUTH_SECRET_BYTES_MIN} random bytes or more in base64url")
    return secret


def _mac(secret: bytes, action: Action, path: str, until_s: int, signer: str) -> str:
    # Paths contain no null bytes, so the parts are unambiguous.
    message = b"\0".join((_PURPOSES[action], path.encode(), str(until_s).encode(), signer.encode()))
    return _encoded(hmac.digest(secret, message, hashlib.sha256))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
