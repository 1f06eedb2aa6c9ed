"""The configuration of a subscription: the body of the request that creates it, normalised, and its hash."""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Any
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec import Meta

from headwater import limits
from headwater.errors import InvalidSubscriptionError
from headwater.protocol.streams.paths import RESERVED, STREAM_ROOT
from headwater.protocol.subscriptions.patterns import parse_member, parse_pattern

ROOT = f"{STREAM_ROOT}{RESERVED}/subscriptions"
JWKS_PATH = f"{STREAM_ROOT}{RESERVED}/jwks.json"


class Delivery(enum.Enum):
    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"


class SubscriptionConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """A normalised configuration. `streams` are sorted and unique; streams that are added later are not in it."""

    type: Delivery
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = limits.LEASE_TTL_DEFAULT_MS
    description: str | None = None

    @property
    def hash(self) -> str:
        """A hash of everything that makes two configurations different."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


_Text = Annotated[str, Meta(max_length=limits.SUBSCRIPTION_TEXT_LENGTH_MAX)]


class _WebhookBody(msgspec.Struct, frozen=True):
    url: str


class _CreateBody(msgspec.Struct, frozen=True):
    type: Delivery
    pattern: _Text | None = None
    streams: list[_Text] | None = None
    webhook: _WebhookBody | None = None
    wake_stream: _Text | None = None
    lease_ttl_ms: Annotated[int, Meta(ge=limits.LEASE_TTL_MIN_MS, le=limits.LEASE_TTL_MAX_MS)] | None = None
    description: _Text | None = None


class _StreamsBody(msgspec.Struct, frozen=True):
    streams: list[_Text]


class Ack(msgspec.Struct, frozen=True):
    """An acked offset: everything before it is processed. `path` is another name of `stream`."""

    offset: str
    stream: str | None = None
    path: str | None = None

    @property
    def member(self) -> str:
        name = self.stream if self.stream is not None else self.path
        if name is None:
            raise InvalidSubscriptionError("an ack needs a stream")
        return parse_member(name)


class AckBody(msgspec.Struct, frozen=True):
    """The body of a callback, ack or release."""

    wake_id: str
    generation: int
    acks: Annotated[list[Ack], Meta(max_length=limits.SUBSCRIPTION_MEMBERS_PER_REQUEST)] = []
    done: bool = False


class ClaimBody(msgspec.Struct, frozen=True):
    """`claim_id`, an extension, lets a worker repeat a claim whose response was lost."""

    worker: Annotated[str, Meta(min_length=1, max_length=limits.SUBSCRIPTION_TEXT_LENGTH_MAX)]
    claim_id: Annotated[str, Meta(max_length=limits.SUBSCRIPTION_ID_LENGTH_MAX)] = ""


class WebhookAnswer(msgspec.Struct, frozen=True):
    """What a receiver may answer to a webhook. Anything else means that it continues in the background."""

    done: bool = False


def parse_config(body: bytes) -> SubscriptionConfig:
    """Parse the body of a create. The URL of the webhook is checked by the caller, who knows which are allowed."""
    wanted = decode(body, _CreateBody)
    if wanted.pattern is None and not wanted.streams:
        raise InvalidSubscriptionError("a subscription needs a pattern or streams")
    is_webhook = wanted.type is Delivery.WEBHOOK
    if is_webhook and wanted.webhook is None:
        raise InvalidSubscriptionError("a subscription of type webhook needs webhook.url")
    if not is_webhook and wanted.wake_stream is None:
        raise InvalidSubscriptionError("a subscription of type pull-wake needs wake_stream")
    members = check_members(wanted.streams or ())
    wake_stream = None if is_webhook or wanted.wake_stream is None else parse_member(wanted.wake_stream)
    if wake_stream in members:
        raise InvalidSubscriptionError("a subscription cannot have its own wake stream as a member")
    return SubscriptionConfig(
        wanted.type,
        None if wanted.pattern is None else parse_pattern(wanted.pattern).text,
        members,
        wanted.webhook.url if is_webhook and wanted.webhook is not None else None,
        wake_stream,
        limits.LEASE_TTL_DEFAULT_MS if wanted.lease_ttl_ms is None else wanted.lease_ttl_ms,
        wanted.description,
    )


def parse_members(body: bytes) -> tuple[str, ...]:
    """Parse the body that adds streams."""
    return check_members(decode(body, _StreamsBody).streams)


def check_members(paths: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    members = tuple(sorted({parse_member(path) for path in paths}))
    if len(members) > limits.SUBSCRIPTION_MEMBERS_PER_REQUEST:
        raise InvalidSubscriptionError(f"a request names at most {limits.SUBSCRIPTION_MEMBERS_PER_REQUEST} streams")
    return members


def decode(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSubscriptionError(f"the body is not valid: {error}") from None


def parse_id(raw: str) -> str:
    """The id of a subscription in a URL, which is still percent-encoded."""
    try:
        name = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise InvalidSubscriptionError("the id is not UTF-8 after percent-decoding") from None
    if not 0 < len(name) <= limits.SUBSCRIPTION_ID_LENGTH_MAX or not name.isprintable() or name in (".", ".."):
        raise InvalidSubscriptionError(
            f"an id has from 1 to {limits.SUBSCRIPTION_ID_LENGTH_MAX} printable characters, got {name[:80]!r}"
        )
    if "/" in name:
        raise InvalidSubscriptionError("an id cannot contain a slash")
    return name


def quote_id(name: str) -> str:
    return quote(name, safe="~!$&'()*+,;=:@")
