"""Issuers of JWTs, and the check of a token of theirs.

A token is good if an issuer of the auth file signed it with one of its keys, for the audience that the file names, and
if it has begun and not ended. Its end is exact; `nbf` and `iat` may be a little ahead of our clock.
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

OF_JWT = "~"  # begins the id of an issuer, and so of a signer that is no token
_REQUIRED = ["exp", "iss", "aud"]


class Issuer(msgspec.Struct, frozen=True):
    url: str  # its `iss`
    audience: list[str]
    keys: KeySet
    scopes: Scopes | None = None  # that narrow those of its tokens
    claim: str = "scope"

    @property
    def id(self) -> str:
        """Names the issuer in what its tokens signed."""
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
    """A short name that no other subject has, and that can be printed."""
    name = f"{issuer}:{subject}"
    if len(name) <= AUTH_NAME_LENGTH_MAX and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{issuer[: AUTH_NAME_LENGTH_MAX - 33]}:{digest}"


def _scopes(claim: object) -> list[Scope]:
    """Those of a token. An issuer may write others there that concern us not, as `openid`."""
    given = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else ()
    found = []
    for text in given[:AUTH_SCOPES_MAX]:
        try:
            found.append(parse_scope(str(text)))
        except ValueError:
            continue
    return found


def verify_jwt(token: str, issuers: dict[str, Issuer], now_s: float) -> Caller:
    """Verify a JWT and return its caller. UnauthorizedError has the reason, but no content of the token."""
    import jwt  # which takes a fifth of a second that those without issuers need not spend

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
