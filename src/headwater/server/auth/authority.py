"""Authentication and authorization of requests.

Access is checked before anything is looked up: a caller that may not read a stream gets 403 whether it exists or not.

A credential is checked once and then cached by the value of its header, until it expires or the rules change. The time
of the cache lookup reveals nothing: Python hashes text with a secret key, and compares the text only if the whole hash
is equal. A token that is not cached is hashed, and the hash is compared in constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable

from headwater import limits
from headwater.errors import ForbiddenError, HeadwaterError, UnauthorizedError
from headwater.log.quotas import TokenQuotas
from headwater.outbound import CheckedUrl
from headwater.protocol.streams.headers import CLOSED
from headwater.server.auth import signing
from headwater.server.auth.callers import ANONYMOUS, Caller
from headwater.server.auth.grants import Grant
from headwater.server.auth.held import Held, HeldFeed, HeldReads
from headwater.server.auth.issuers import OF_JWT, verify_jwt
from headwater.server.auth.route_rules import Rule, Subject
from headwater.server.auth.rules import Rules
from headwater.server.auth.scopes import Action, OneAction, Scopes, parse_scope, parse_scopes
from headwater.server.auth.tokens import PREFIX, Token, digest_of
from headwater.server.http import Headers, Request, Response

_PATH, _METRICS = Subject.PATH, Subject.METRICS  # names of their own: see log/content.py
_LISTED = (Subject.LIST, Subject.MANY)  # the handler checks each stream
# Caches must keep responses apart by credentials, and pages must not send signed URLs as referrers.
READ_HEADERS: Headers = (("vary", "authorization"), ("referrer-policy", "no-referrer"))


class Authority:
    """Checks requests against `rules`, which can be replaced at any time."""

    def __init__(self, rules: Rules, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._held = HeldReads()
        self.quotas = TokenQuotas()
        self.on_change: list[Callable[[], None]] = []  # called when rules or keys have changed
        self.use(rules)

    def use(self, rules: Rules) -> None:
        """Replace the rules. Live reads that the new rules do not allow end."""
        self.rules = rules
        self._tokens = {token.id: token for token in rules.tokens.values()}
        self.quotas.use(token.quota for token in rules.tokens.values() if token.quota is not None)
        self._scopes: dict[str, Scopes] = {}  # of tokens that were used, by their ids: parsing them takes milliseconds
        rules.anonymous.renewed = lambda: self.rules.anonymous
        self.forget()

    def forget(self) -> None:
        """Check every credential again: rules or keys have changed."""
        self._callers: dict[str, Caller] = {}  # by the value of the Authorization header
        self._signers: dict[tuple[str, str, str], Caller] = {}  # by the signature of a URL, its path and the method
        self._epoch = object()
        self._held.end_those_not_allowed()
        for changed in self.on_change:
            changed()

    # Requests

    def authorize(self, request: Request, rule: Rule, path: str) -> None:
        """Identify the caller of a request, and refuse what its scopes do not allow. `path` is the path in the log."""
        action, subject, query = rule.action, rule.subject, request.query
        if action is None or (subject is _METRICS and self.rules.open_metrics):
            return
        signature = None
        if query and signing.PARAMETER in query:
            request.query, signature = signing.take_signature(query)
        if request.relayed_for is not None:
            caller = self.caller_of(request.relayed_for)
        else:
            credentials = request.headers.get("authorization")
            known = None if credentials is None else self._callers.get(credentials)
            if known is None or known.until_s <= self._clock():
                known = self._identify(request.method, credentials, signature, path)
            caller = known
        request.caller = caller
        if subject is _PATH:
            if (action, path) not in caller.allowed:  # usually it is cached
                caller.require(action, path)
            if caller.signature and action is Action.APPEND and CLOSED in request.headers:
                raise ForbiddenError("a signed URL is for appends, not to close a stream or table")
        elif rule.named is not None:
            caller.require(action if rule.acts is None else rule.acts(request), rule.named(request))
        elif subject in _LISTED:
            if caller is self.rules.anonymous and not caller.scopes:
                raise caller.refusal("read:…")
        elif not caller.may_on_server(action):
            raise caller.refusal(f"{action}:**")

    def _identify(self, method: str, credentials: str | None, signature: str | None, path: str) -> Caller:
        if credentials is not None:
            return self._caller(credentials)
        if signature is None:
            return self.rules.anonymous
        return self._signer(signature, path, method)

    def _caller(self, credentials: str) -> Caller:
        """The caller of a request, by the value of its Authorization header."""
        known = self._callers.pop(credentials, None)
        if known is not None and known.until_s > self._clock():
            self._callers[credentials] = known
            return known
        scheme, _, token = credentials.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > limits.AUTH_HEADER_LENGTH_MAX:
            raise UnauthorizedError("send a token as Authorization: Bearer TOKEN")
        caller = self._token_caller(token) if token.startswith(PREFIX) else self._jwt_caller(token)
        caller.renewed = lambda: self._caller(credentials)
        if len(self._callers) >= limits.AUTH_CALLERS_CACHED_MAX:
            del self._callers[next(iter(self._callers))]  # the oldest
        self._callers[credentials] = caller
        return caller

    def _token_caller(self, text: str) -> Caller:
        digest = digest_of(text)
        token = self.rules.tokens.get(digest)
        if token is None or not hmac.compare_digest(token.digest, digest):
            raise UnauthorizedError("the token is not known; it may have been revoked")
        return self._caller_of(token)

    def _caller_of(self, token: Token) -> Caller:
        until_s = math.inf if token.expires_s is None else token.expires_s
        if until_s <= self._clock():
            raise UnauthorizedError("the token has expired")
        scopes = self._scopes.get(token.id)
        if scopes is None:
            scopes = self._scopes[token.id] = parse_scopes(token.scopes)
        caller = Caller(token.name, scopes, until_s, token.id)
        caller.owner = token.name
        return caller

    def _jwt_caller(self, text: str) -> Caller:
        if not self.rules.issuers:
            raise UnauthorizedError("the token is not known; it may have been revoked")
        return verify_jwt(text, self.rules.issuers, self._clock())

    # Signed URLs

    def sign(self, caller: Caller, path: str, seconds: int, action: Action = Action.READ) -> tuple[str, int]:
        """The query parameter of a signed URL, and its expiry time. The caller must be allowed the action."""
        secret = self.rules.signing_secret
        if secret is None:
            raise UnauthorizedError("the auth file has no signing_secret, so URLs cannot be signed")
        until_s = int(min(self._clock() + seconds, caller.until_s))
        return signing.sign(secret, path, signing.Signature(until_s, caller.id, action)), until_s

    def _signer(self, value: str, path: str, method: str) -> Caller:
        """The caller of a request with a signed URL: its signer, for the signed action alone."""
        known = self._signers.get((value, path, method))
        if known is not None and known.until_s > self._clock():
            return known
        secret = self.rules.signing_secret
        if secret is None:
            raise UnauthorizedError("this server takes no signed URLs")
        signature = signing.verify(secret, path, value, self._clock())
        if signing.ACTIONS.get(method) is not signature.action:
            methods = [name for name, action in signing.ACTIONS.items() if action is signature.action]
            raise UnauthorizedError(f"the signed URL is for {' and '.join(methods)}")
        caller = self._signer_of(signature, path)
        caller.signature = value.rpartition(".")[2]
        caller.renewed = lambda: self._signer(value, path, method)
        if len(self._signers) >= limits.AUTH_CALLERS_CACHED_MAX:
            del self._signers[next(iter(self._signers))]  # the oldest
        self._signers[value, path, method] = caller
        return caller

    def _signer_of(self, signature: signing.Signature, path: str) -> Caller:
        if signature.signer.startswith(OF_JWT):
            issuer, _, name = signature.signer.partition(":")
            scopes: Scopes = OneAction(signature.action, path, self._narrowed(issuer))
            return Caller(name, scopes, signature.until_s)
        token = self._tokens.get(signature.signer)
        if token is None:
            raise UnauthorizedError("the token that signed the URL was revoked")
        caller = self._caller_of(token)
        scopes = OneAction(signature.action, path, caller.scopes)
        return Caller(caller.name, scopes, min(signature.until_s, caller.until_s))

    def _narrowed(self, issuer_id: str) -> Scopes | None:
        """The scopes that limit an issuer."""
        for issuer in self.rules.issuers.values():
            if issuer.id == issuer_id:
                return issuer.scopes
        raise UnauthorizedError("the issuer of the token that signed the URL is no longer in the auth file")

    # Grants

    @property
    def epoch(self) -> object:
        """Another object after each change of the rules."""
        return self._epoch

    def has_expired(self, caller: Caller) -> bool:
        return caller.until_s <= self._clock()

    def caller_of(self, grant: Grant) -> Caller:
        """The caller of a grant, by the current rules. Raises UnauthorizedError if there is none any more.

        Tokens are found by name, so that a token can be replaced by another one with the same name.
        """
        if grant.name == ANONYMOUS:
            return self.rules.anonymous
        if grant.id.startswith(OF_JWT):
            within = self._narrowed(grant.id.partition(":")[0])
            return Caller(grant.name, Scopes([parse_scope(scope) for scope in grant.scopes], within), id=grant.id)
        for token in self._tokens.values():
            if token.name == grant.name:
                return self._caller_of(token)
        raise UnauthorizedError("the token was revoked")

    # Tokens for remote servers

    def token_for(self, target: CheckedUrl) -> str | None:
        """The token for a remote server: that of the longest `url` that the target is below."""
        fitting = [remote for remote in self.rules.remotes if str(target).startswith(remote.url)]
        return max(fitting, key=lambda remote: len(remote.url)).token if fitting else None

    # Responses

    async def answer(self, request: Request, rule: Rule, path: str, work: Awaitable[Response]) -> Response:
        """The response to an authorized read. A live read ends when the credential expires or is revoked."""
        action = rule.action
        if action is None or rule.subject is Subject.MANY:
            return await work
        still_allowed = self.watch(request, lambda caller: caller.may(action, path))
        waits = rule.subject is _PATH and ("live" in request.query or "%" in request.query)  # l%69ve is live as well
        response = await (self._while_allowed(still_allowed, work) if waits else work)
        return self.hold(response, still_allowed)

    def hold(self, response: Response, still_allowed: Callable[[], bool]) -> Response:
        """End a response that stays open when it is not allowed any more."""
        if response.feed is not None:
            feed = HeldFeed(still_allowed, response.feed)
            self._held.add(feed)
            response.feed = feed
        return response

    async def _while_allowed(self, still_allowed: Callable[[], bool], work: Awaitable[Response]) -> Response:
        try:
            async with asyncio.timeout(None) as patience:
                held = Held(still_allowed, lambda: patience.reschedule(0))
                self._held.add(held)
                try:
                    response = await work
                finally:
                    self._held.discard(held)
        except TimeoutError:
            raise _ended() from None
        if not still_allowed():
            raise _ended()
        return response

    def watch(self, request: Request, is_allowed: Callable[[Caller], bool]) -> Callable[[], bool]:
        """Returns a function that tells whether the credential of a request is still valid and its caller is allowed to
        read. `is_allowed` is called when the rules have changed."""
        caller, epoch = request.caller, self._epoch

        def still_allowed() -> bool:
            nonlocal caller, epoch
            if epoch is not self._epoch:
                try:
                    caller, epoch = caller.renewed(), self._epoch
                except HeadwaterError:
                    return False
                return is_allowed(caller)
            return caller.until_s > self._clock()

        return still_allowed


def _ended() -> UnauthorizedError:
    return UnauthorizedError("the token has expired or was revoked while the read waited")


def as_private(headers: Headers) -> Headers:
    """The headers of a response that shared caches must not store."""
    kept = [(name, _private(value)) if name == "cache-control" else (name, value) for name, value in headers]
    return (*kept, *READ_HEADERS)


def _private(value: str) -> str:
    kept = [part for part in value.split(", ") if part != "public"]
    return ", ".join(["private", *kept])
