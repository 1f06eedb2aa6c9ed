"""Keys that JWTs are signed with: from PEM, from a shared secret, or from a JWKS (RFC 7517).

The type of a key determines its algorithm, so a token cannot choose another one, such as `none`, or HS256 with a public
key as the secret. Private members of a JWK are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.limits import AUTH_KEYS_MAX, AUTH_RSA_BITS_MIN, AUTH_SECRET_BYTES_MIN
from headwater.log.json_framing import UNREADABLE, reason_of

EDDSA, ES256, HS256, RS256 = "EdDSA", "ES256", "HS256", "RS256"


class Key(NamedTuple):
    algorithm: str
    key: Any  # in the form of PyJWT
    kid: str | None = None

    def __repr__(self) -> str:
        return f"Key({self.algorithm}, kid={self.kid!r})"


class KeySet:
    """The keys of an issuer. Keys from a URL arrive later and change: `wanted` is called when a token names an unknown
    key, and returns whether a fetch may find it."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)

    def wanted(self) -> bool:
        return False

    def find(self, algorithm: str, kid: str | None) -> list[Key]:
        return [
            key
            for key in self.keys
            if key.algorithm == algorithm and (kid is None or key.kid is None or key.kid == kid)
        ]


def key_of_secret(secret: str) -> Key:
    data = secret.encode()
    if len(data) < AUTH_SECRET_BYTES_MIN:
        raise ValueError(f"the secret of HS256 must have {AUTH_SECRET_BYTES_MIN} bytes or more")
    return Key(HS256, data)


def key_of_pem(text: str) -> Key:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return _checked(load_pem_public_key(text.encode()), None)
    except ValueError as error:
        raise ValueError(f"key is no public key in PEM for EdDSA (Ed25519), ES256 (P-256) or RS256: {error}") from None


def _checked(key: object, kid: str | None) -> Key:
    """A public key with its algorithm."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, Ed25519PublicKey):
        return Key(EDDSA, key, kid)
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return Key(ES256, key, kid)
    if isinstance(key, RSAPublicKey):
        if key.key_size < AUTH_RSA_BITS_MIN:
            raise ValueError(f"an RSA key must have {AUTH_RSA_BITS_MIN} bits or more, got {key.key_size}")
        return Key(RS256, key, kid)
    raise ValueError("the type of the key is not supported")


class Jwk(msgspec.Struct, frozen=True):
    """The members of a JWK that are used: its public part, or the secret of HS256."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None
    k: str | None = None

    def __repr__(self) -> str:
        return f"Jwk({self.kty}, kid={self.kid!r})"


class Jwks(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_KINDS = {  # supported types: algorithm and members
    ("RSA", None): (RS256, ("n", "e")),
    ("EC", "P-256"): (ES256, ("crv", "x", "y")),
    ("OKP", "Ed25519"): (EDDSA, ("crv", "x")),
    ("oct", None): (HS256, ("k",)),
}


def key_of_jwk(jwk: Jwk) -> Key | None:
    """The key of a JWK; None if it is valid but not for this use. ValueError if it is invalid."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    algorithm, members = _KINDS.get((jwk.kty, jwk.crv), ("", ()))
    if not algorithm or jwk.use not in (None, "sig") or jwk.alg not in (None, algorithm):
        return None
    data = {"kty": jwk.kty, **{name: getattr(jwk, name) for name in members}}
    if None in data.values():
        raise ValueError(f"a JWK of the type {jwk.kty} lacks one of {', '.join(members)}")
    try:
        key = PyJWK(data, algorithm).key
    except PyJWTError:  # not chained: its text contains the key
        raise ValueError(f"a JWK of the type {jwk.kty} cannot be read") from None
    if algorithm == HS256:
        if len(key) < AUTH_SECRET_BYTES_MIN:
            raise ValueError(f"the secret of HS256 must have {AUTH_SECRET_BYTES_MIN} bytes or more")
        return Key(HS256, key, jwk.kid)
    return _checked(key, jwk.kid)


def keys_of_jwks(data: bytes, *, secrets: bool) -> list[Key]:
    """The usable keys of a JWKS; ValueError if there are none. A published JWKS must not contain secrets."""
    try:
        raw = msgspec.json.decode(data, type=Jwks).keys[:AUTH_KEYS_MAX]
    except UNREADABLE as error:
        raise ValueError(f"not a JWKS: {reason_of(error)}") from None
    return _usable((_parse(item) for item in raw), secrets=secrets)


def keys_of_tables(tables: Iterable[Mapping[str, object]]) -> list[Key]:
    """The same for JWKs in the auth file."""
    try:
        jwks = [msgspec.convert(table, Jwk) for table in tables]
    except msgspec.ValidationError as error:
        raise ValueError(f"not a JWK: {error}") from None
    return _usable(jwks, secrets=True)


def _parse(raw: msgspec.Raw) -> Jwk | None:
    try:
        return msgspec.json.decode(raw, type=Jwk)
    except UNREADABLE:
        return None


def _usable(jwks: Iterable[Jwk | None], *, secrets: bool) -> list[Key]:
    keys, faults = [], []
    for jwk in jwks:
        try:
            key = None if jwk is None else key_of_jwk(jwk)
        except ValueError as error:
            faults.append(str(error))
            continue
        if key is not None and (secrets or key.algorithm != HS256):
            keys.append(key)
    if not keys:
        raise ValueError("; ".join(["no key for EdDSA (Ed25519), ES256 (P-256), RS256 or HS256", *faults[:3]]))
    return keys
