"""Tokens: 256 random bits. The auth file has only their hashes.

SHA-256 is sufficient: slow hashes protect passwords, which can be guessed, but nobody can guess 256 random bits. A slow
hash would let anyone overload the server with invalid tokens.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

from headwater.log.quotas import TokenQuota

PREFIX = "hw_"  # recognised by people and by secret scanners
HASH_PREFIX = "sha256:"
_RANDOM_BYTES = 32


class Token(msgspec.Struct, frozen=True):
    """A token in the auth file."""

    name: str
    digest: bytes
    scopes: list[str]
    created_s: float | None = None
    expires_s: float | None = None
    quota: TokenQuota | None = None

    def __repr__(self) -> str:
        return f"Token({self.name!r})"

    @property
    def id(self) -> str:
        """The id of the token in signed URLs. A later token with the same name has another id."""
        return self.digest.hex()[:16]


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def format_hash(digest: bytes) -> str:
    return HASH_PREFIX + digest.hex()


def parse_hash(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text.removeprefix(HASH_PREFIX))
    except ValueError:
        digest = b""
    if not text.startswith(HASH_PREFIX) or len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"a hash is {HASH_PREFIX} and 64 hexadecimal digits; make tokens with: headwater token add")
    return digest
