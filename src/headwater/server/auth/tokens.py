"""Tokens: 256 random bits, of which the auth file keeps a hash.

SHA-256 is the right hash for them. A slow one, as for passwords, makes guesses expensive where there are few to make;
nobody guesses 256 random bits, and a slow hash would only help those who send wrong tokens to keep the server busy.
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

PREFIX = "hw_"  # by which people and scanners for secrets recognise a token
HASH_PREFIX = "sha256:"
_RANDOM_BYTES = 32


class Token(msgspec.Struct, frozen=True):
    """A token as the auth file has it."""

    name: str
    digest: bytes
    scopes: list[str]
    created_s: float | None = None
    expires_s: float | None = None

    def __repr__(self) -> str:
        return f"Token({self.name!r})"

    @property
    def id(self) -> str:
        """Names the token in what it signed. One with the same name that is made later has another id."""
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
