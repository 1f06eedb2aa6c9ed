"""What the receiver of webhooks needs: the keys of the server, how long they are used, and the wake in a request."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from headwater import limits
from headwater.client.effects import Flow, HttpRequest
from headwater.client.session import Session, exchange
from headwater.client.subscriptions import Wake
from headwater.errors import HeadwaterError, ProtocolError, WebhookSignatureError
from headwater.log.json_framing import UNREADABLE
from headwater.protocol.streams.paths import RESERVED
from headwater.protocol.subscriptions.signatures import WEBHOOK_SIGNATURE, parse_jwks

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_MAX_AGE = re.compile(r"(?:^|,)\s*max-age=([0-9]{1,9})\s*(?=,|$)", re.IGNORECASE)


class FetchedKeys(msgspec.Struct, frozen=True):
    """The keys of a server by their ids, and how long they may be used."""

    keys: dict[str, Ed25519PublicKey]
    age_s: float


class KeyCache:
    """The keys that a receiver has fetched. Times are those of a clock that does not go back.

    Keys are fetched again when they are too old, and when a webhook names one that is not known, but then only after
    some time: anybody can send such webhooks. While a fetch fails, the old keys are used for a limited time.
    """

    def __init__(self) -> None:
        self._keys: dict[str, Ed25519PublicKey] = {}
        self._fresh_until_s = -math.inf
        self._usable_until_s = -math.inf
        self._fetch_from_s = -math.inf
        self._error: HeadwaterError | None = None

    def wants_fetch(self, key_id: str, now_s: float) -> bool:
        """Whether to fetch the keys before a signature with this key is verified."""
        is_wanted = now_s >= self._fresh_until_s or key_id not in self._keys
        return is_wanted and now_s >= self._fetch_from_s

    def store(self, fetched: FetchedKeys, now_s: float) -> None:
        self._keys = fetched.keys
        self._fresh_until_s = now_s + fetched.age_s
        self._usable_until_s = self._fresh_until_s + limits.JWKS_STALE_S
        self._fetch_from_s = now_s + limits.JWKS_REFETCH_S
        self._error = None

    def fail(self, error: HeadwaterError, now_s: float) -> None:
        self._fetch_from_s = now_s + limits.JWKS_REFETCH_S
        self._error = error

    def keys(self, key_id: str, now_s: float) -> Mapping[str, Ed25519PublicKey]:
        """The keys to verify with. Raises the error of the last fetch if the key might have been in its response."""
        keys = self._keys if now_s < self._usable_until_s else {}
        if key_id not in keys and self._error is not None:
            raise self._error.with_traceback(None)
        return keys


def jwks_url_of(session: Session, jwks_url: str | None) -> str:
    """The URL of the keys: the given one, or that of the client's server."""
    if jwks_url is None:
        return f"{session.root}{RESERVED}/jwks.json"
    if not jwks_url.startswith(("https://", "http://")):
        raise ValueError(f"not the URL of a JWK Set: {jwks_url[:80]!r}")
    return jwks_url


def fetch_keys(session: Session, url: str) -> Flow[FetchedKeys]:
    """Fetch the keys once: the server sends a webhook again if it was not accepted."""
    request = HttpRequest("GET", url, read_timeout_s=limits.JWKS_TIMEOUT_S, guarded=True)
    reply = yield from exchange(session, request, attempts_max=1)
    try:
        if len(reply.body) > limits.JWKS_BYTES_MAX:
            raise ValueError(f"more than {limits.JWKS_BYTES_MAX} bytes")
        keys = parse_jwks(reply.body)
    except ValueError as reason:
        error = ProtocolError(f"no keys of a server that sends webhooks: {reason}")
        error.url = url
        raise error from None
    max_age = _MAX_AGE.search(reply.headers.get("cache-control", ""))
    age_s = limits.JWKS_AGE_S if max_age is None else float(max_age[1])
    return FetchedKeys(keys, min(max(age_s, limits.JWKS_AGE_MIN_S), limits.JWKS_AGE_MAX_S))


def signature_of(headers: Mapping[str, str]) -> str:
    """The signature header of a request, whatever the case of its name."""
    for name, value in headers.items():
        if name.lower() == WEBHOOK_SIGNATURE:
            return value
    raise WebhookSignatureError("the request has no Webhook-Signature header")


def parse_wake(body: bytes) -> Wake:
    """The wake in the body of a webhook whose signature is valid."""
    try:
        return msgspec.json.decode(body, type=Wake)
    except UNREADABLE as error:
        raise ProtocolError(f"the body of a signed webhook is not a wake: {error}") from None


def check_body(body: object) -> None:
    if not isinstance(body, bytes):
        raise TypeError(f"the body of a webhook is the bytes that were received, got {type(body).__name__}")
