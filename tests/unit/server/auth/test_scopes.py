"""Scopes, and what callers may do by them."""

from __future__ import annotations

import pytest

from headwater.errors import ForbiddenError, UnauthorizedError
from headwater.limits import AUTH_DECISIONS_CACHED_MAX
from headwater.protocol.tables.paths import log_path
from headwater.server.auth.callers import ANONYMOUS, ANYONE, Caller
from headwater.server.auth.scopes import NOTHING, Action, Scopes, parse_scope, parse_scopes

MATCHES = [
    ("read:prices", "prices", True),
    ("read:prices", "prices/eur", False),
    ("read:prices", "prices2", False),
    ("read:prices/*", "prices/eur", True),
    ("read:prices/*", "prices/eur/spot", False),
    ("read:prices/**", "prices/eur/spot", True),
    ("read:prices/**", "prices", False),
    ("read:**", "anything/at/all", True),
    ("read:**/eur", "eur", True),
    ("read:**/eur", "a/b/eur", True),
    ("read:**/eur", "a/b/xeur", False),
    ("read:a.c", "abc", False),
    ("read:a*", "a\nb", True),
    ("append:prices", "prices", False),
    ("admin:prices/*", "prices/eur", True),
    ("admin:prices/*", "orders", False),
]


@pytest.mark.parametrize(("scope", "path", "allowed"), MATCHES)
def test_a_scope_covers_the_paths_of_its_glob_for_streams_and_tables(scope: str, path: str, allowed: bool) -> None:
    assert parse_scope(scope).covers(Action.READ, path) is allowed
    assert parse_scope(scope).covers(Action.READ, log_path(path)) is allowed


def test_a_root_before_the_glob_means_streams_or_tables_alone() -> None:
    streams, tables = parse_scope("read:/v1/stream/a/*"), parse_scope("read:/v1/table/a/*")
    assert streams.covers(Action.READ, "a/b")
    assert not streams.covers(Action.READ, log_path("a/b"))
    assert tables.covers(Action.READ, log_path("a/b"))
    assert not tables.covers(Action.READ, "a/b")


@pytest.mark.parametrize("action", Action)
def test_every_action_is_its_own_but_for_admin(action: Action) -> None:
    allowed = {other for other in Action if parse_scopes([f"{action}:**"]).allow(other, "x")}
    assert allowed == (set(Action) if action is Action.ADMIN else {action})


@pytest.mark.parametrize(
    "text",
    [
        *("", "read", "read:", "write:x", "READ:x", "read:/x", "read:x/", "read:/v1/stream/", "read:/v1/table"),
        *(" read:x", "*:x", "read:a\nb", "read:**/**/**", "read:a*b*c*", "read:" + "x" * 2_000),
    ],
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        parse_scope(text)


def test_scopes_within_others_allow_what_both_allow() -> None:
    scopes = Scopes([parse_scope("read:**"), parse_scope("append:a")], parse_scopes(["read:a/**", "append:**"]))
    assert scopes.allow(Action.READ, "a/b")
    assert not scopes.allow(Action.READ, "b")
    assert scopes.allow(Action.APPEND, "a")
    assert not scopes.allow(Action.APPEND, "b")


def test_only_admin_of_everything_administers_the_server() -> None:
    assert parse_scopes(["admin:**"]).everything
    assert not parse_scopes(["admin:*", "admin:a/**", "read:**"]).everything
    assert not Scopes([parse_scope("admin:**")], parse_scopes(["admin:a/**"])).everything
    assert not NOTHING.everything


def test_the_scope_of_the_settings_is_for_the_server_as_a_whole() -> None:
    assert parse_scopes(["settings:**"]).allow_on_server(Action.SETTINGS)
    assert parse_scopes(["admin:**"]).allow_on_server(Action.SETTINGS)
    assert not parse_scopes(["settings:**"]).allow_on_server(Action.ADMIN)
    assert not parse_scopes(["admin:a/**", "read:**"]).allow_on_server(Action.SETTINGS)
    assert not Scopes([parse_scope("settings:**")], parse_scopes(["read:**"])).allow_on_server(Action.SETTINGS)
    with pytest.raises(ValueError, match=r"so the scope is settings:\*\*; got 'settings:a/\*\*'"):
        parse_scope("settings:a/**")


def test_a_caller_remembers_a_bounded_number_of_answers() -> None:
    caller = Caller("ci", parse_scopes(["read:a/*"]))
    for number in range(AUTH_DECISIONS_CACHED_MAX + 10):
        assert caller.may(Action.READ, f"a/{number}")
        assert not caller.may(Action.READ, f"b/{number}")
    assert len(caller.allowed) <= AUTH_DECISIONS_CACHED_MAX


def test_a_refusal_names_the_scope_that_is_missing() -> None:
    caller = Caller("ci", parse_scopes(["read:a"]))
    with pytest.raises(ForbiddenError, match="'ci' lacks the scope append:t"):
        caller.require(Action.APPEND, log_path("t"))
    with pytest.raises(UnauthorizedError, match="read:b"):
        Caller(ANONYMOUS, NOTHING).require(Action.READ, "b")
    ANYONE.require(Action.DELETE, "x")
