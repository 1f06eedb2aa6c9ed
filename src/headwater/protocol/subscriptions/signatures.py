"""Signatures of webhooks: `Webhook-Signature: t=<seconds>,kid=<key id>,ed25519=<signature>`.

A signature is Ed25519 over `<seconds>.<body>`, with the body as it was sent. The server publishes its public keys as a
JWK Set, in which `kid` names the key. A key id is `ds_` and the JWK thumbprint (RFC 7638) of the public key, so that it
follows from the key alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headwater import limits
from headwater.errors import UnknownSigningKeyError, WebhookSignatureError

if TYPE_CHECKING:  # imported where it is used, because it takes time that most programs need not spend
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

WEBHOOK_SIGNATURE = "webhook-signature"
JWKS_MEDIA_TYPE = "application/jwk-set+json"

_KEY_TYPE, _CURVE, _ALGORITHM = "OKP", "Ed25519", "EdDSA"
_KEY_ID_PREFIX = "ds_"
_KEY_ID = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # visible ASCII without the comma, which separates the members
_SECONDS = re.compile(r"[0-9]{1,12}")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")


class SignatureHeader(NamedTuple):
    """The members of a `Webhook-Signature` header."""

    timestamp: str  # as it was sent, because it is signed as text
    key_id: str
    signature: bytes


def sign_webhook(private_key: Ed25519PrivateKey, key_id: str, timestamp_s: int, body: bytes) -> str:
    """The `Webhook-Signature` header of a body that is sent now."""
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError(f"a key id is visible ASCII without commas, got {key_id[:80]!r}")
    signature = private_key.sign(_signed(str(timestamp_s), body))
    return f"t={timestamp_s},kid={key_id},ed25519={_encoded(signature)}"


def verify_webhook(
    header: str,
    body: bytes,
    keys: Mapping[str, Ed25519PublicKey],
    now_s: float,
    tolerance_s: float = limits.WEBHOOK_TOLERANCE_S,
) -> None:
    """Raise WebhookSignatureError unless one of the keys signed this body at most `tolerance_s` ago.

    A signature from the future is refused in the same way. UnknownSigningKeyError: the header names none of the keys.
    """
    from cryptography.exceptions import InvalidSignature

    parsed = parse_signature(header)
    age_s = now_s - int(parsed.timestamp)
    if abs(age_s) > tolerance_s:
        when = f"{age_s:.0f} s old" if age_s > 0 else f"{-age_s:.0f} s ahead of this clock"
        raise WebhookSignatureError(f"the signature is {when}; at most {tolerance_s:g} s are accepted")
    key = keys.get(parsed.key_id)
    if key is None:
        raise UnknownSigningKeyError(f"no key with the id {parsed.key_id!r}")
    try:
        key.verify(parsed.signature, _signed(parsed.timestamp, body))
    except InvalidSignature:
        raise WebhookSignatureError("the signature does not match the body") from None


def parse_signature(header: str) -> SignatureHeader:
    """Parse a `Webhook-Signature` header. Members with other names are ignored; a later version may add some."""
    members: dict[str, str] = {}
    for member in header[: limits.WEBHOOK_SIGNATURE_LENGTH_MAX + 1].split(","):
        name, _, value = member.strip(" \t").partition("=")
        if name in members:
            raise WebhookSignatureError(f"the signature header has {name[:80]!r} twice")
        members[name] = value
    timestamp, key_id = members.get("t", ""), members.get("kid", "")
    if len(header) > limits.WEBHOOK_SIGNATURE_LENGTH_MAX or not _SECONDS.fullmatch(timestamp):
        raise WebhookSignatureError(f"not a signature header: {header[:80]!r}")
    if not _KEY_ID.fullmatch(key_id):
        raise WebhookSignatureError(f"the signature header has no valid kid: {header[:80]!r}")
    signature = _decoded(members.get("ed25519", ""))
    if signature is None or len(signature) != limits.ED25519_SIGNATURE_BYTES:
        raise WebhookSignatureError(f"the signature header has no valid ed25519: {header[:80]!r}")
    return SignatureHeader(timestamp, key_id, signature)


def key_id(public_key: Ed25519PublicKey) -> str:
    """The id of a key: a prefix and its JWK thumbprint."""
    thumbprint = f'{{"crv":"{_CURVE}","kty":"{_KEY_TYPE}","x":"{_encoded(public_key.public_bytes_raw())}"}}'
    return _KEY_ID_PREFIX + _encoded(hashlib.sha256(thumbprint.encode()).digest())


def public_jwk(public_key: Ed25519PublicKey) -> dict[str, str]:
    """The JWK that the server publishes for a key."""
    return {
        "kty": _KEY_TYPE,
        "crv": _CURVE,
        "kid": key_id(public_key),
        "use": "sig",
        "alg": _ALGORITHM,
        "x": _encoded(public_key.public_bytes_raw()),
    }


def format_jwks(public_keys: Iterable[Ed25519PublicKey]) -> bytes:
    """The JWK Set of the keys that the server publishes."""
    return msgspec.json.encode({"keys": [public_jwk(key) for key in public_keys]})


class _Jwk(msgspec.Struct):
    kty: str
    kid: str = ""
    crv: str = ""
    use: str = "sig"
    alg: str = _ALGORITHM
    x: str = ""


class _Jwks(msgspec.Struct):
    keys: list[msgspec.Raw]


def parse_jwks(body: bytes) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of a JWK Set by their ids. Keys of other types or for other uses are ignored.

    ValueError if it is not a JWK Set, has too many keys, or has an invalid or repeated Ed25519 key.
    """
    try:
        raw_keys = msgspec.json.decode(body, type=_Jwks).keys
        jwks = [msgspec.json.decode(raw, type=_Jwk) for raw in raw_keys[: limits.WEBHOOK_KEYS_MAX]]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JWK Set: {error}") from None
    if len(raw_keys) > limits.WEBHOOK_KEYS_MAX:
        raise ValueError(f"a JWK Set with {len(raw_keys)} keys; at most {limits.WEBHOOK_KEYS_MAX} are accepted")
    keys: dict[str, Ed25519PublicKey] = {}
    for jwk in jwks:
        if (jwk.kty, jwk.crv, jwk.use, jwk.alg) != (_KEY_TYPE, _CURVE, "sig", _ALGORITHM):
            continue
        if jwk.kid in keys or not _KEY_ID.fullmatch(jwk.kid):
            raise ValueError(f"a JWK Set with a repeated or invalid key id: {jwk.kid[:80]!r}")
        keys[jwk.kid] = _public_key(jwk)
    return keys


def _public_key(jwk: _Jwk) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = _decoded(jwk.x)
    if data is None or len(data) != limits.ED25519_KEY_BYTES:
        raise ValueError(f"the key {jwk.kid[:80]!r} of the JWK Set is not an Ed25519 key")
    return Ed25519PublicKey.from_public_bytes(data)


def _signed(timestamp: str, body: bytes) -> bytes:
    return timestamp.encode() + b"." + body


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes | None:
    """The bytes of unpadded base64url; None if it is not valid, or not the text that encodes these bytes."""
    if not _BASE64URL.fullmatch(text):
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return data if _encoded(data) == text else None
