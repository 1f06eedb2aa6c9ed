"""The authority: what it remembers, what it forgets, and which tokens it sends to others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import jwt
import pytest

from headwater import limits
from headwater.errors import ForbiddenError, HeadwaterError, UnauthorizedError
from headwater.outbound import parse_target
from headwater.protocol.tables.paths import log_path
from headwater.server.auth import authority, route_rules, signing
from headwater.server.auth.authority import Authority, as_private
from headwater.server.auth.editing import add_token, revoke_token
from headwater.server.auth.keys import KeySet
from headwater.server.auth.rules import Rules, load_rules
from headwater.server.auth.scopes import Action, parse_scopes
from headwater.server.auth.signing import verify
from headwater.server.http import Request


class World:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "auth.toml"
        self.now_s = datetime.now(UTC).timestamp()
        self.token, _ = add_token(self.file, "ci", ["read:a/**", "append:a/**"], None)
        self.authority = Authority(self.load(), lambda: self.now_s)

    def load(self) -> Rules:
        return load_rules(self.file, lambda url: KeySet())

    def reload(self) -> None:
        self.authority.use(self.load())

    def ask(
        self,
        path: str = "a/b",
        rule: route_rules.Rule = route_rules.READ,
        credentials: str | None = "",
        query: str = "",
        method: str = "GET",
    ) -> Request:
        header = f"Bearer {self.token}" if credentials == "" else credentials
        request = Request(method, "/", query, {} if header is None else {"authorization": header}, b"")
        self.authority.authorize(request, rule, path)
        return request

    def status(self, *args: object, **more: object) -> int:
        try:
            self.ask(*args, **more)  # type: ignore[arg-type]
        except HeadwaterError as error:
            return error.status
        return 200


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_token_is_found_by_its_header_and_its_name_is_the_identity(world: World) -> None:
    first, second = world.ask(), world.ask()
    assert first.identity == "ci"
    assert first.caller is second.caller
    for scheme in ("bearer", "BEARER"):
        assert world.status(credentials=f"{scheme} {world.token}") == 200
    for wrong in (
        f"Basic {world.token}",
        world.token,
        "Bearer",
        "Bearer ",
        "",
        f"Bearer {world.token}x",
        "Bearer \xff",
    ):
        assert world.status(credentials=wrong or " ") == 401, wrong
    assert world.status(credentials="Bearer " + "x" * 100_000) == 401


def test_a_revoked_token_is_refused_at_once(world: World) -> None:
    assert world.status() == 200
    revoke_token(world.file, "ci")
    world.reload()
    assert world.status() == 401


def test_other_scopes_hold_at_once(world: World) -> None:
    world.ask(rule=route_rules.APPEND)
    world.file.write_text(world.file.read_text().replace('"append:a/**"', '"append:b"'))
    world.reload()
    with pytest.raises(ForbiddenError):
        world.ask(rule=route_rules.APPEND)


def test_a_token_ends_though_it_was_checked_before(world: World) -> None:
    token, _ = add_token(
        world.file, "short", ["read:**"], datetime.fromtimestamp(world.now_s, UTC) + timedelta(seconds=9)
    )
    world.reload()
    assert world.status(credentials=f"Bearer {token}") == 200
    world.now_s += 10
    with pytest.raises(UnauthorizedError, match="expired"):
        world.ask(credentials=f"Bearer {token}")
    assert world.status() == 200


def test_what_is_remembered_is_bounded_and_holds_no_wrong_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUTH_CALLERS_CACHED_MAX", 3)
    for number in range(20):
        world.status(credentials=f"Bearer hw_{number}")
    assert not world.authority._callers
    for number in range(20):
        assert world.status(credentials=f"Bearer {' ' * number}{world.token}") == 200
    assert len(world.authority._callers) == 3


def test_a_request_without_a_token_may_do_what_the_file_allows_everyone(world: World) -> None:
    assert world.status(credentials=None) == 401
    assert world.status(rule=route_rules.LISTED, path="", credentials=None) == 401
    world.file.write_text("anonymous = ['read:open/*']\nopen_metrics = true\n" + world.file.read_text())
    world.reload()
    assert world.status("open/x", credentials=None) == 200
    assert world.status("other", credentials=None) == 401
    assert world.status(rule=route_rules.LISTED, path="", credentials=None) == 200
    assert world.status(rule=route_rules.METRICS, path="", credentials=None) == 200
    assert world.status(rule=route_rules.SERVER, path="", credentials=None) == 401
    assert world.status("open/x", credentials="Bearer wrong") == 401  # not as if it had none
    world.file.write_text(world.file.read_text().replace("open_metrics = true", ""))
    world.reload()
    assert world.status(rule=route_rules.METRICS, path="") == 403


def test_a_signature_is_taken_out_of_the_query_whoever_asks(world: World) -> None:
    value, until_s = world.authority.sign(world.ask().caller, "a/b", 60)
    assert until_s == int(world.now_s + 60)
    for credentials in (None, ""):
        request = world.ask(query=f"offset=-1&signed={value}&live=sse", credentials=credentials)
        assert request.query == "offset=-1&live=sse"
        assert request.identity == "ci"
        assert (request.caller.signature == value.rpartition(".")[2]) is (credentials is None)
    assert world.ask(query=f"signed={value}&x=1", credentials=None).query == "x=1"
    assert world.status(log_path("a/b"), query=f"signed={value}", credentials=None) == 401
    assert world.status(query=f"signed={value}", credentials=None, method="POST") == 401
    caller = world.ask(query=f"signed={value}", credentials=None).caller
    assert not caller.may(Action.READ, "a/c")
    assert not caller.may(Action.APPEND, "a/b")
    world.now_s += 61
    assert world.status(query=f"signed={value}", credentials=None) == 401


def test_a_signed_url_ends_when_its_token_may_no_longer_read(world: World) -> None:
    value, _ = world.authority.sign(world.ask().caller, "a/b", 60)
    world.file.write_text(world.file.read_text().replace('"read:a/**", ', ""))
    world.reload()
    assert world.status(query=f"signed={value}", credentials=None) == 403
    revoke_token(world.file, "ci")
    add_token(world.file, "ci", ["read:**"], None)  # another token with the same name
    world.reload()
    assert world.status(query=f"signed={value}", credentials=None) == 401


def test_nothing_is_signed_without_a_secret(world: World) -> None:
    caller = world.ask().caller
    value, _ = world.authority.sign(caller, "a/b", 60)
    lines = world.file.read_text().splitlines()
    world.file.write_text("\n".join(line for line in lines if "signing_secret" not in line))
    world.reload()
    assert world.status(query=f"signed={value}", credentials=None) == 401
    with pytest.raises(UnauthorizedError, match="signing_secret"):
        world.authority.sign(caller, "a/b", 60)


def test_a_url_that_a_jwt_signed_is_good_within_what_its_own_issuer_may_allow(world: World) -> None:
    long = f"https://id.example/{'x' * 90}"  # a name is cut, and it may not be found by what is left of it
    secret = "a secret of more than thirty-two bytes"
    text = world.file.read_text()

    def use(scopes: dict[str, list[str]]) -> None:
        issuers = [
            f"[[issuer]]\nissuer='{url}'\naudience='hw'\nsecret='{secret}'\nscopes={allowed}\n"
            for url, allowed in scopes.items()
        ]
        world.file.write_text("\n".join([text, *issuers]))
        world.reload()

    def signed_by(url: str, subject: str) -> str:
        claims = {"iss": url, "aud": "hw", "sub": subject, "exp": int(world.now_s) + 60, "scope": "read:a/**"}
        caller = world.ask(credentials=f"Bearer {jwt.encode(claims, secret)}").caller
        return f"signed={world.authority.sign(caller, 'a/b', 60)[0]}"

    one, other = "https://id.example", "https://id.example:8443"  # the one is the beginning of the other
    use({one: ["read:**"], other: ["read:**"], long: ["read:**"]})
    urls = [
        signed_by(one, "ann"),
        signed_by(other, "ann"),
        signed_by(long, "9" * 36),
        signed_by(one, "\U0001f600" * 60),
    ]
    assert [world.status(query=url, credentials=None) for url in urls] == [200] * 4
    use({one: ["read:**"], other: ["read:b"], long: ["read:b"]})
    assert [world.status(query=url, credentials=None) for url in urls] == [200, 403, 403, 200]
    use({one: ["read:**"]})
    assert [world.status(query=url, credentials=None) for url in urls] == [200, 401, 401, 200]


def test_a_token_of_ours_goes_to_the_server_it_is_for(world: World) -> None:
    for url, token in (("https://shop.example/", "one"), ("https://shop.example/v1/table/", "two")):
        with world.file.open("a") as file:
            file.write(f'\n[[remote]]\nurl = "{url}"\ntoken = "{token}"\n')
    world.reload()
    expected = {
        "https://shop.example/v1/table/prices?since_id=1": "two",
        "https://shop.example/v1/other": "one",
        "https://shop.example.evil.example/v1/table/prices": None,
        "https://shop.example:8443/v1/table/prices": None,
        "https://SHOP.example/x": "one",
    }
    for url, sent in expected.items():
        assert world.authority.token_for(parse_target(url)) == sent, url


@pytest.mark.parametrize(
    "url",
    [
        *("https://shop.example", "shop.example/", "https://u@shop.example/", "https://a/?x", ""),
        *("https://u:hush@shop.example/", "https://shop.example:443/"),
    ],
)
def test_a_url_for_a_token_ends_with_a_slash(world: World, url: str) -> None:
    with world.file.open("a") as file:
        file.write(f'\n[[remote]]\nurl = "{url}"\ntoken = "hush"\n')
    with pytest.raises(ValueError, match="remote") as error:
        world.load()
    assert "hush" not in str(error.value)


def test_answers_are_for_the_caller_alone() -> None:
    headers = (("cache-control", "public, max-age=60, immutable"), ("etag", "x"))
    assert as_private(headers)[:2] == (("cache-control", "private, max-age=60, immutable"), ("etag", "x"))
    assert ("vary", "authorization") in as_private(())


def test_a_signed_url_is_checked_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took milliseconds for a token with many scopes, at each request."""
    value, _ = world.authority.sign(world.ask().caller, "a/b", 60)
    parsing, verifying = Mock(wraps=parse_scopes), Mock(wraps=verify)
    monkeypatch.setattr(authority, "parse_scopes", parsing)
    monkeypatch.setattr(signing, "verify", verifying)
    world.reload()
    for _ in range(3):
        assert world.status(query=f"signed={value}", credentials=None) == 200
    other, _ = world.authority.sign(world.ask().caller, "a/c", 60)
    assert world.status("a/c", query=f"signed={other}", credentials=None) == 200
    assert (parsing.call_count, verifying.call_count) == (1, 2)
    assert world.status("a/c", query=f"signed={value}", credentials=None) == 401
    world.now_s += 61
    assert world.status(query=f"signed={value}", credentials=None) == 401
