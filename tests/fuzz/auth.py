"""Credentials: the auth file, scopes, tokens, JWTs, keys and signed URLs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import tempfile
from functools import lru_cache
from pathlib import Path

from headwater.errors import ForbiddenError, HeadwaterError, OverloadedError, UnauthorizedError
from headwater.server.auth import signing
from headwater.server.auth.authority import Authority
from headwater.server.auth.callers import ANONYMOUS, Caller
from headwater.server.auth.issuers import Issuer, verify_jwt
from headwater.server.auth.keys import KeySet, key_of_secret, keys_of_jwks
from headwater.server.auth.route_rules import LISTED, READ, SERVER
from headwater.server.auth.rules import Rules, load_rules
from headwater.server.auth.scopes import Action, parse_scope, parse_scopes
from headwater.server.auth.signing import Signature
from headwater.server.auth.tokens import Token, digest_of
from headwater.server.http import Request
from tests.fuzz.inputs import Choices, Target

NOW_S = 1_800_000_000.0
SECRET = "s" * 40
ISSUER = Issuer("https://id.example", ["streams"], KeySet([key_of_secret(SECRET)]), parse_scopes(["read:**"]))
TOKEN = "hw_" + "t" * 43
RULES = Rules(
    {digest_of(TOKEN): Token("t", digest_of(TOKEN), ["read:a/**"], expires_s=NOW_S + 60)},
    {ISSUER.url: ISSUER},
    Caller(ANONYMOUS, parse_scopes(["read:open"])),
    signing_secret=b"k" * 32,
)


def scopes(data: bytes) -> None:
    """A scope and a path, against a matcher that goes through both a character at a time."""
    choices = Choices(data)
    text, path = choices.line().decode("utf-8", "replace"), choices.rest().decode("utf-8", "replace")[:300]
    try:
        scope = parse_scope(text)
    except ValueError:
        return
    assert str(scope) == text
    assert parse_scope(str(scope)) == scope
    for action in Action:
        covered = scope.covers(action, path)
        if scope.action not in (action, Action.ADMIN):
            assert not covered
        elif "[" not in text and scope.paths.streams and len(path) < 40 and not path.startswith("\x01"):
            assert covered == _matches(scope.paths.path, path), (text, path)


@lru_cache(maxsize=10_000)
def _matches(pattern: str, path: str) -> bool:
    if pattern.startswith("**/"):
        rest = pattern[3:]
        return _matches(rest, path) or any(_matches(rest, path[at + 1 :]) for at, one in enumerate(path) if one == "/")
    if pattern.startswith("**"):
        return any(_matches(pattern[2:], path[at:]) for at in range(len(path) + 1))
    if pattern.startswith("*"):
        end = path.find("/") if "/" in path else len(path)
        return any(_matches(pattern[1:], path[at:]) for at in range(end + 1))
    if not pattern or not path:
        return not pattern and not path
    return (pattern[0] == path[0] or (pattern[0] == "?" and path[0] != "/")) and _matches(pattern[1:], path[1:])


def jwts(data: bytes) -> None:
    """JWTs with any header and claims, signed with the right key or not: a caller within bounds, or 401."""
    choices = Choices(data)
    signed = bool(choices.number(1))
    header = _object(choices.line(), {"alg": "HS256", "typ": "JWT"})
    claims = _object(choices.line(), {"iss": ISSUER.url, "aud": "streams", "exp": NOW_S + 60, "sub": "u"})
    parts = f"{_segment(header)}.{_segment(claims)}".encode()
    mac = hmac.digest(SECRET.encode() if signed else b"x" * 40, parts, hashlib.sha256)
    token = parts.decode() + "." + base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
    for text in (token, choices.rest().decode("latin-1"), token + choices.rest().decode("latin-1")):
        try:
            caller = verify_jwt(text, {ISSUER.url: ISSUER}, NOW_S)
        except (UnauthorizedError, OverloadedError) as error:
            assert SECRET not in str(error)
            continue
        assert signed
        assert text == token
        assert NOW_S < caller.until_s < float("inf")
        assert caller.name.isprintable()
        assert len(caller.name) <= 128
        assert not caller.may(Action.APPEND, "a")
        assert not caller.may_administer


def _object(line: bytes, default: dict[str, object]) -> bytes:
    """The default with the members that a line of JSON has, or the line as it is."""
    try:
        claims = json.loads(line.decode() or "{}")
    except (ValueError, RecursionError):
        return line
    if not isinstance(claims, dict):
        return line
    return json.dumps(default | claims).encode()


def _segment(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def keys(data: bytes) -> None:
    for secrets in (False, True):
        try:
            accepted = keys_of_jwks(data, secrets=secrets)
        except ValueError:
            continue
        assert accepted
        assert secrets or all(key.algorithm != "HS256" for key in accepted)


def auth_files(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "auth.toml"
        path.write_bytes(data)
        try:
            rules = load_rules(path, lambda _: KeySet())
        except ValueError as error:
            assert str(path) in str(error)
            return
    Authority(rules, lambda: NOW_S)


def credentials(data: bytes) -> None:
    """Any header and any query: nobody gets in who does not hold a token, and nobody gets more than it allows."""
    choices = Choices(data)
    header, query = choices.line().decode("latin-1"), choices.line().decode("latin-1")
    path = choices.choice(("a/b", "open", "secret", "\x01a/b"))
    fields = {"authorization": header} if choices.number(1) else {}
    authority = Authority(RULES, lambda: NOW_S)
    good = header.partition(" ")[0].lower() == "bearer" and header.partition(" ")[2].strip() == TOKEN
    for rule in (READ, LISTED, SERVER):
        request = Request(choices.choice(("GET", "POST")), f"/v1/stream/{path}", query, dict(fields), b"")
        try:
            authority.authorize(request, rule, path)
        except (UnauthorizedError, ForbiddenError) as error:
            assert TOKEN not in str(error)
            continue
        assert rule is not SERVER
        if rule is READ:
            assert path == "open" if not fields else good and path.endswith("a/b")


def signed_urls(data: bytes) -> None:
    """A signature that was made holds for its path and time alone, and no other bytes are one."""
    choices = Choices(data)
    secret, until_s = b"k" * 32, choices.number(2**33)
    signer, path = choices.line().decode("utf-8", "replace")[:60] or "x", choices.line().decode("utf-8", "replace")
    value = signing.sign(secret, path, Signature(until_s, signer))
    rest = choices.rest().decode("latin-1")
    query, taken = signing.take_signature(f"offset=-1&signed={value}&{rest.replace('=', '')}")
    assert taken == value
    assert value not in query
    with contextlib.suppress(UnauthorizedError):
        assert signing.verify(secret, path, value, NOW_S) == Signature(until_s, signer)
        assert until_s > NOW_S
    for other in ((path + "x", value), (path, rest), (path, value + rest)):
        if other == (path, value):
            continue
        try:
            signing.verify(secret, *other, NOW_S)
        except HeadwaterError:
            continue
        raise AssertionError(other)


TARGETS = {
    "scopes": Target(
        scopes,
        (b"read:a/**\na/b", b"admin:/v1/table/*/x?\na", b"append:[a-c]*\nb", b"read:**/a/**\nx/a/y"),
        (b"read:", b"admin:", b"**", b"*", b"?", b"/", b"[", b"]", b"-", b"!", b"^", b"\\", b"\n", b"a"),
    ),
    "jwts": Target(
        jwts,
        (
            b"\x01\n\n",
            b'\x01\n{"scope":"read:a/** openid"}\n',
            b'\x01{"alg":"none"}\n\n',
            b"\x00\n\nhw_x",
            b'\x01\n{"sub":1}\n',
        ),
        (
            b'{"alg":"',
            b'"kid":',
            b'"exp":1e400',
            b'"exp":"x"',
            b'"nbf":',
            b'"iat":null',
            b'"aud":[',
            b'"sub":"',
            b'"scope":[',
            b"read:[z-a]",
            b'"crit":["b64"],"b64":false',
            b"{",
            b"}",
            b",",
            b'"',
            b"\n",
            b"9" * 400,
            b"\\ud800",
            b"\x01",
            b".",
        ),
    ),
    "keys": Target(
        keys,
        (
            b'{"keys":[{"kty":"oct","k":"' + b"A" * 43 + b'"}]}',
            b'{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}',
            b'{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"AQAB","e":"AQAB"}]}',
        ),
        (
            b'"kty":"RSA"',
            b'"n":"',
            b'"e":"',
            b'"x":"',
            b'"crv":"P-256"',
            b'"kid":',
            b'"use":"sig"',
            b"{",
            b"}",
            b",",
            b'"',
            b"A" * 43,
            b"\xff",
        ),
    ),
    "auth_files": Target(
        auth_files,
        (
            b'signing_secret = "' + b"A" * 43 + b'"\nanonymous = ["read:**"]\n',
            b'[[token]]\nname = "a"\nhash = "sha256:'
            + b"0" * 64
            + b'"\nscopes = ["read:**"]\nexpires = 2030-01-01T00:00:00Z\n',
            b'[[issuer]]\nissuer = "https://a"\naudience = "b"\nsecret = "' + b"s" * 40 + b'"\n',
        ),
        (
            b"[[token]]\n",
            b"name = ",
            b"scopes = [",
            b'"read:[z-a]"',
            b"expires = 0001-01-01T00:00:00+23:59\n",
            b"[" * 500,
            b"= {a=",
            b'"',
            b"\n",
            b"jwks_file = '.'\n",
            b"key = '",
            b"\xff",
        ),
    ),
    "credentials": Target(
        credentials,
        (b"Bearer " + TOKEN.encode() + b"\n\n\x00\x01\x00", b"\nsigned=1.a.b\n\x00\x00", b"Basic x\n\n\x01\x01"),
        (b"Bearer ", TOKEN.encode(), b"\n", b"signed=", b"&", b"hw_", b".", b"eyJ", b"\x00", b"\x01", b"\xa0"),
    ),
    "signed_urls": Target(
        signed_urls, (b"\x00\x6b\x49\xd2\x01t\na/b\n&signed=x",), (b"\n", b"signed=", b"&", b".", b"A" * 43, b"~")
    ),
}
