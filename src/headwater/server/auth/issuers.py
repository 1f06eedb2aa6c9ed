"""Issuers of JWTs, and the verification of their tokens.

A token is valid if an issuer in the auth file signed it with one of its keys, for the audience in the file, and if it
has not expired. `exp` is exact; `nbf` and `iat` may be slightly ahead of the clock.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import msgspec

from headwater.errors import HeadwaterError, OverloadedError, UnauthorizedError
from headwater.limits import AUTH_JWKS_RETRY_S, AUTH_LEEWAY_S, AUTH_NAME_LENGTH_MAX, AUTH_SCOPES_MAX
from headwater.server.auth.callers import Caller
from headwater.server.auth.keys import Key, KeySet
from headwater.server.auth.scopes import Scope, Scopes, parse_scope

OF_JWT = "~"  # the prefix of an issuer id, which distinguishes it from a token id
_REQUIRED = ["exp", "iss", "aud"]


class Issuer(msgspec.Struct, frozen=True):
    url: str  # its `iss`
    audience: list[str]
    keys: KeySet
    scopes: Scopes | None = None  # upper bound of the scopes of its tokens
    claim: str = "scope"

    @property
    def id(self) -> str:
        """The id of the issuer in signed URLs."""
        return OF_JWT + hashlib.sha256(self.url.encode()).hexdigest()[:16]

    def verify(self, token: str, header: dict[str, Any], now_s: float) -> Caller:
        from jwt import InvalidSignatureError

        algorithm, kid = header.get("alg"), header.get("kid")
        candidates = self.keys.find(str(algorithm), kid if isinstance(kid, str) else None)
        if not candidates:
            if self.keys.wanted():
                detail = "the keys of the token's issuer are being fetched"
                raise OverloadedError(detail, retry_after_s=AUTH_JWKS_RETRY_S)
            raise UnauthorizedError("no key of the token's issuer fits the token")
        error: HeadwaterError = UnauthorizedError("the token is not valid")
        for key in candidates:
            try:
                return self._caller(self._claims(token, key), now_s)
            except InvalidSignatureError:
                error = UnauthorizedError("the signature of the token is wrong")
        raise error

    def _claims(self, token: str, key: Key) -> dict[str, Any]:
        from jwt import decode

        return decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=self.audience,
            issuer=self.url,
            leeway=AUTH_LEEWAY_S,
            options={"require": _REQUIRED},
        )

    def _caller(self, claims: dict[str, Any], now_s: float) -> Caller:
        until_s = float(claims["exp"])
        if not math.isfinite(until_s) or until_s <= now_s:
            raise UnauthorizedError("the token has expired")
        name = identity_name(self.url, str(claims.get("sub", "")))
        return Caller(name, Scopes(_scopes(claims.get(self.claim)), self.scopes), until_s, f"{self.id}:{name}")


def identity_name(issuer: str, subject: str) -> str:
    """A short, unique and printable name for a subject."""
    name = f"{issuer}:{subject}"
    if len(name) <= AUTH_NAME_LENGTH_MAX and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{issuer[: AUTH_NAME_LENGTH_MAX - 33]}:{digest}"


def _scopes(claim: object) -> list[Scope]:
    """The scopes of a token. Values that are not scopes, such as `openid`, are ignored."""
    texts = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    scopes = []
    for text in texts[:AUTH_SCOPES_MAX]:
        try:
            scopes.append(parse_scope(str(text)))
        except ValueError:
            continue
    return scopes


def verify_jwt(token: str, issuers: dict[str, Issuer], now_s: float) -> Caller:
    """Verify a JWT and return its caller. UnauthorizedError has the reason, but no content of the token."""
    import jwt  # imported here because it takes 0.2 s

    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
        issuer = issuers.get(str(claims.get("iss")))
        if issuer is None:
            raise UnauthorizedError("the issuer of the token is not one of the auth file")
        return issuer.verify(token, header, now_s)
    except jwt.ExpiredSignatureError:
        raise UnauthorizedError("the token has expired") from None
    except jwt.ImmatureSignatureError:
        raise UnauthorizedError("the token is not valid yet") from None
    except jwt.InvalidAudienceError:
        raise UnauthorizedError("the token is for another audience") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError):
        raise UnauthorizedError("the token is not a valid JWT") from None
