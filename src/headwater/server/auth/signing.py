"""Signed URLs: read one stream or table without a token for a limited time. An EventSource cannot send headers.

    /v1/stream/prices?offset=-1&live=sse&signed=1767225600.3f9a….mac

The signature covers the path in the log, the expiry time and the signer. It allows GET and HEAD of that path, with any
other parameters. A URL that a token signed is valid as long as the token is valid and may read the path. A URL that a
JWT signed expires with the JWT.
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

PARAMETER = "signed"

_SIGNED = re.compile(r"([0-9]{1,11})\.([A-Za-z0-9_-]{1,1024})\.([A-Za-z0-9_-]{43})")
_PARAMETER = re.compile(rf"(?:^|&){PARAMETER}=([^&]*)")
_PURPOSE = b"headwater signed url 1"


class Signature(NamedTuple):
    until_s: int
    signer: str  # the id of a token, or the id of an issuer, `:` and the name of the JWT's identity


def sign(secret: bytes, path: str, signature: Signature) -> str:
    """Return the value of the query parameter."""
    signer = _encoded(signature.signer.encode())
    return f"{signature.until_s}.{signer}.{_mac(secret, path, signature.until_s, signer)}"


def verify(secret: bytes, path: str, value: str, now_s: float) -> Signature:
    match = _SIGNED.fullmatch(value)
    if match is None:
        raise UnauthorizedError("the signature of the URL is incomplete")
    until_s = int(match[1])
    if not hmac.compare_digest(match[3], _mac(secret, path, until_s, match[2])):
        raise UnauthorizedError("the signature of the URL is wrong; it holds for one path")
    if until_s <= now_s:
        raise UnauthorizedError("the signed URL has expired")
    try:
        return Signature(until_s, base64.urlsafe_b64decode(match[2] + "==").decode())
    except (binascii.Error, UnicodeDecodeError):
        raise UnauthorizedError("the signature of the URL is incomplete") from None


def take_signature(query: str) -> tuple[str, str | None]:
    """Split a query into the query without its signature, which may be logged, and the signature."""
    found = _PARAMETER.findall(query)
    if not found:
        return query, None
    return _PARAMETER.sub("", query).removeprefix("&"), found[0] if len(found) == 1 else ""


def parse_secret(text: str) -> bytes:
    try:
        secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) < AUTH_SECRET_BYTES_MIN:
        raise ValueError(f"signing_secret is {AUTH_SECRET_BYTES_MIN} random bytes or more in base64url")
    return secret


def _mac(secret: bytes, path: str, until_s: int, signer: str) -> str:
    # Paths contain no null bytes, so the parts are unambiguous.
    message = b"\0".join((_PURPOSE, path.encode(), str(until_s).encode(), signer.encode()))
    return _encoded(hmac.digest(secret, message, hashlib.sha256))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
