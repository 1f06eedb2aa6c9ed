"""The auth file: tokens and issuers with their scopes, in TOML. docs/security.md describes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from headwater.errors import TargetRefusedError
from headwater.limits import AUTH_FILE_BYTES_MAX, AUTH_SCOPES_MAX, QUOTA_MAX
from headwater.log.quotas import TokenQuota
from headwater.server.auth.callers import ANONYMOUS, Caller
from headwater.server.auth.issuers import Issuer
from headwater.server.auth.keys import Key, KeySet, key_of_pem, key_of_secret, keys_of_jwks, keys_of_tables
from headwater.server.auth.scopes import NOTHING, parse_scopes
from headwater.server.auth.signing import parse_secret
from headwater.server.auth.tokens import Token, parse_hash
from headwater.server.quotas import parse_limits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=QUOTA_MAX)] | None


class QuotaEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The quota of a token; None: no limit."""

    streams: _Limit = None
    bytes: _Limit = None
    appends_per_s: _Limit = None
    live_readers: _Limit = None


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    hash: str
    scopes: list[str]
    created: datetime | None = None
    expires: datetime | None = None
    quota: QuotaEntry | None = None


class IssuerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An issuer. Exactly one of `key`, `secret`, `keys`, `jwks_file` and `jwks_url` is set."""

    issuer: str
    audience: str | list[str]
    key: str | None = None  # a public key in PEM
    secret: str | None = None  # of HS256
    keys: list[dict[str, Any]] | None = None  # JWKs
    jwks_file: str | None = None  # relative to the auth file
    jwks_url: str | None = None
    scopes: list[str] | None = None  # upper bound of the scopes of its tokens
    scope_claim: str = "scope"


class RemoteEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The token that this server sends when it follows tables below a URL."""

    url: str
    token: str


class AuthFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signing_secret: str | None = None
    anonymous: list[str] = []  # scopes of requests without a token
    open_metrics: bool = False  # /metrics needs no token
    token: list[TokenEntry] = []
    issuer: list[IssuerEntry] = []
    remote: list[RemoteEntry] = []


class Rules(msgspec.Struct, frozen=True):
    tokens: dict[bytes, Token]  # by the digest of the token
    issuers: dict[str, Issuer]
    anonymous: Caller = Caller(ANONYMOUS, NOTHING)
    open_metrics: bool = False
    signing_secret: bytes | None = None
    urls: frozenset[str] = frozenset()  # of JWKS
    remotes: tuple[RemoteEntry, ...] = ()

    def __repr__(self) -> str:
        return f"Rules({len(self.tokens)} tokens, {len(self.issuers)} issuers)"


def read_auth_file(path: Path) -> AuthFile:
    """Read the auth file. ValueError names the file and the error, but no secrets."""
    data = path.read_bytes()
    if len(data) > AUTH_FILE_BYTES_MAX:
        raise ValueError(f"{path} is larger than {AUTH_FILE_BYTES_MAX} bytes")
    try:
        return msgspec.toml.decode(data, type=AuthFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a valid auth file: {error}") from None


KeysOf: TypeAlias = Callable[[str], KeySet]


def load_rules(path: Path, keys_of: KeysOf, files: list[Path] | None = None) -> Rules:
    """Read the auth file and the files that it names. `keys_of` returns the keys at a URL. All files that were read,
    valid or not, are added to `files`; a change of one of them reloads the rules."""
    files = [] if files is None else files
    files.append(path)
    auth_file = read_auth_file(path)
    try:
        tokens = [parse_token(entry) for entry in auth_file.token]
        issuers = [_issuer(entry, path, files, keys_of) for entry in auth_file.issuer]
        _check_unique(tokens, issuers)
        return Rules(
            {token.digest: token for token in tokens},
            {issuer.url: issuer for issuer in issuers},
            Caller(ANONYMOUS, parse_scopes(auth_file.anonymous)),
            auth_file.open_metrics,
            None if auth_file.signing_secret is None else parse_secret(auth_file.signing_secret),
            frozenset(entry.jwks_url for entry in auth_file.issuer if entry.jwks_url is not None),
            tuple(map(_check_remote, auth_file.remote)),
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_token(entry: TokenEntry) -> Token:
    try:
        if len(entry.scopes) > AUTH_SCOPES_MAX:
            raise ValueError(f"it has more than {AUTH_SCOPES_MAX} scopes")
        parse_scopes(entry.scopes)
        return Token(
            check_name(entry.name),
            parse_hash(entry.hash),
            entry.scopes,
            _seconds("created", entry.created),
            _seconds("expires", entry.expires),
            None if entry.quota is None else _quota(entry.name, entry.quota),
        )
    except ValueError as error:
        raise ValueError(f"token {entry.name[:80]!r}: {error}") from None


def parse_token_quota(text: str) -> QuotaEntry:
    """A quota as `headwater token add` takes it: `streams=1000 bytes=10000000000`."""
    limits = parse_limits(text.split())
    return QuotaEntry(
        limits.get("streams_max"), limits.get("bytes_max"), limits.get("appends_per_s"), limits.get("live_readers_max")
    )


def _quota(name: str, entry: QuotaEntry) -> TokenQuota:
    if entry == QuotaEntry():
        raise ValueError(f"its quota has no limits; there are {', '.join(QuotaEntry.__struct_fields__)}")
    return TokenQuota(name, entry.streams or 0, entry.bytes or 0, entry.appends_per_s or 0, entry.live_readers or 0)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise ValueError(
            f"a name has up to 64 letters, digits and . _ @ -, and is not {ANONYMOUS!r}; got {name[:80]!r}"
        )
    return name


def _seconds(what: str, moment: datetime | None) -> float | None:
    if moment is not None and moment.tzinfo is None:
        raise ValueError(f"{what} needs a time zone, as 2030-01-01T00:00:00Z")
    return None if moment is None else moment.timestamp()


def _check_remote(entry: RemoteEntry) -> RemoteEntry:
    """Check the prefix of a remote. It ends with a slash, so it cannot match a part of a host name. It has no port 443,
    because URLs are compared without it. The URL may contain a password, so the error does not show it."""
    if not re.fullmatch(r"https?://[^/@?#A-Z]+(?<!:443)/([^?#]*/)?", entry.url):
        raise ValueError(
            "the url of a remote is like https://shop.example/v1/table/: in lower case, with a slash at its end, and "
            "without a user, a query and the port 443"
        )
    if not re.fullmatch(r"[!-~]+", entry.token):
        raise ValueError(f"the token for {entry.url} has characters that a header cannot have")
    return entry


def _check_unique(tokens: list[Token], issuers: list[Issuer]) -> None:
    for what, names in (
        ("name", [token.name for token in tokens]),
        ("hash of the token", [token.digest.hex() for token in tokens]),
        ("issuer", [issuer.url for issuer in issuers]),
    ):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ValueError(f"the {what} {name[:80]!r} is there twice")
            seen.add(name)


def _issuer(entry: IssuerEntry, path: Path, files: list[Path], keys_of: KeysOf) -> Issuer:
    try:
        audience = [entry.audience] if isinstance(entry.audience, str) else entry.audience
        if not entry.issuer or not audience or not all(audience):
            raise ValueError("issuer and audience must not be empty")
        scopes = None if entry.scopes is None else parse_scopes(entry.scopes)
        return Issuer(entry.issuer, audience, _keys(entry, path, files, keys_of), scopes, entry.scope_claim)
    except (ValueError, OSError, TargetRefusedError) as error:
        raise ValueError(f"issuer {entry.issuer[:80]!r}: {error}") from None


def _keys(entry: IssuerEntry, path: Path, files: list[Path], keys_of: KeysOf) -> KeySet:
    sources = (entry.key, entry.secret, entry.keys, entry.jwks_file, entry.jwks_url)
    if sum(source is not None for source in sources) != 1:
        raise ValueError("give one of key, secret, keys, jwks_file and jwks_url")
    if entry.jwks_url is not None:
        return keys_of(entry.jwks_url)
    if entry.jwks_file is not None:
        file = path.parent / entry.jwks_file
        files.append(file)
        return KeySet(keys_of_jwks(file.read_bytes(), secrets=True))
    keys: list[Key] = []
    if entry.key is not None:
        keys.append(key_of_pem(entry.key))
    elif entry.secret is not None:
        keys.append(key_of_secret(entry.secret))
    else:
        keys += keys_of_tables(entry.keys or ())
    return KeySet(keys)
