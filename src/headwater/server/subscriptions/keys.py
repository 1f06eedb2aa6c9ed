"""The keys that sign webhooks and the tokens of wakes. They are a document, so they survive restarts and restores.

A key is replaced after `webhook_key_s`, or when an administrator asks for it. Its public key stays published for
`WEBHOOK_KEY_KEPT_S`, in which receivers still accept what it has signed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import msgspec

from headwater.engine import Engine
from headwater.errors import HeadwaterError, WakeTokenError
from headwater.limits import WEBHOOK_KEY_KEPT_S
from headwater.log.commands import WriteDocument, WriteDocuments
from headwater.protocol.subscriptions.signatures import format_jwks, key_id, sign_webhook
from headwater.server.subscriptions.records import KEYS, SigningKey, SigningKeys, decode_keys, encode
from headwater.server.subscriptions.tokens import parse_token

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("headwater.subscriptions")

_SECRET_BYTES = 32


class Keys:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stored: SigningKeys | None = None
        self._version = 0
        self._private: Ed25519PrivateKey | None = None  # the newest
        self._key_id = ""
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        document = await self._engine.document(KEYS)
        if document is not None:
            self._use(decode_keys(document.data), document.version)

    async def ensure(self) -> None:
        """Create the keys if there are none, and replace the newest if it is old."""
        age_ms = int(self._engine.limits.webhook_key_s * 1000)
        if self._stored is None or self._stored.keys[-1].created_ms + age_ms <= self._engine.now_ms():
            await self.rotate(only_after_ms=age_ms)

    async def renew(self) -> None:
        """Replace the newest key if it is old. If that cannot be written, the old one goes on."""
        try:
            await self.ensure()
        except HeadwaterError as error:
            log.warning("the key that signs webhooks is old and was not replaced: %s", error)

    async def rotate(self, *, only_after_ms: int = 0) -> None:
        """Sign with a new key from now on, unless the newest one is younger than this."""
        async with self._changing:
            now_ms = self._engine.now_ms()
            stored = self._stored or SigningKeys(os.urandom(_SECRET_BYTES))
            if stored.keys and stored.keys[-1].created_ms + only_after_ms > now_ms:
                return
            kept = [key for key in stored.keys if not key.retired_ms or not _is_forgotten(key, now_ms)]
            retired = [msgspec.structs.replace(key, retired_ms=key.retired_ms or now_ms) for key in kept]
            stored = SigningKeys(stored.secret, (*retired, SigningKey(_new_private(), now_ms)))
            await self._engine.execute(WriteDocuments((WriteDocument(KEYS, encode(stored), expected=self._version),)))
            self._use(stored, self._version + 1)

    def _use(self, stored: SigningKeys, version: int) -> None:
        self._stored, self._version = stored, version
        self._private = _load(stored.keys[-1].private)
        self._key_id = key_id(self._private.public_key())

    @property
    def secret(self) -> bytes:
        """The secret of tokens."""
        if self._stored is None:
            raise RuntimeError("there are no keys yet")
        return self._stored.secret

    def check(self, token: str) -> None:
        """WakeTokenError unless the token of a wake was signed here."""
        if self._stored is None:
            raise WakeTokenError("there are no subscriptions")
        parse_token(self._stored.secret, token)

    @property
    def key_id(self) -> str:
        """The id of the key that signs now."""
        return self._key_id

    def sign(self, timestamp_s: int, body: bytes) -> str:
        return sign_webhook(self._newest(), self._key_id, timestamp_s, body)

    def jwks(self) -> bytes:
        """The published keys, the newest first."""
        now_ms = self._engine.now_ms()
        stored = () if self._stored is None else self._stored.keys
        published = [key for key in reversed(stored) if not _is_forgotten(key, now_ms)]
        return format_jwks([_load(key.private).public_key() for key in published])

    def _newest(self) -> Ed25519PrivateKey:
        if self._private is None:
            raise RuntimeError("there are no keys yet")
        return self._private


def _is_forgotten(key: SigningKey, now_ms: int) -> bool:
    return key.retired_ms > 0 and key.retired_ms + WEBHOOK_KEY_KEPT_S * 1000 <= now_ms


def _load(private: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private)


def _new_private() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate().private_bytes_raw()
