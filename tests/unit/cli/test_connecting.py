from __future__ import annotations

import pytest
import typer

from headwater.cli.connecting import Server, root_of, server_named


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://host", "http://host/v1/stream/"),
        ("http://host:1/", "http://host:1/v1/stream/"),
        ("http://host/app", "http://host/app/v1/stream/"),
        ("https://ann:pw@host/a/b/", "https://ann:pw@host/a/b/v1/stream/"),
        ("http://host/v1/stream", "http://host/v1/stream"),
        ("http://host/app/v1/stream/", "http://host/app/v1/stream/"),
        ("http://host/app/v1/stream/tenant", "http://host/app/v1/stream/tenant"),
        ("http://host/app/v1/streams", "http://host/app/v1/streams/v1/stream/"),
        ("http://host/app/v1/table", "http://host/app/v1/stream/"),
    ],
)
def test_the_root_of_streams(url: str, root: str) -> None:
    assert root_of(url) == root


@pytest.mark.parametrize("url", ["host", "host:4437", "ann:pw@host", "ftp://ann:pw@host", "", "//host"])
def test_a_url_without_a_scheme_is_corrected_and_shows_no_password(url: str) -> None:
    with pytest.raises(ValueError, match="begins with http:// or https://, for example http://") as error:
        root_of(url)
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "url", "token"),
    [
        ("orders", "http://host/v1/stream/", "t"),
        ("http://host/app/v1/stream/orders", "http://host/app/v1/stream/", "t"),
        ("http://HOST:80/app/v1/table/prices?x=1", "http://HOST:80/app/v1/stream/", "t"),
        ("http://host/elsewhere/orders", "http://host/v1/stream/", "t"),
        ("https://host/v1/stream/orders", "https://host/v1/stream/", None),
        ("http://other/v1/stream/orders", "http://other/v1/stream/", None),
        ("http://host:81/v1/stream/a/v1/stream/b", "http://host:81/v1/stream/", None),
    ],
)
def test_the_server_of_a_stream_and_what_it_is_sent(name: str, url: str, token: str | None) -> None:
    server = Server("http://host/v1/stream/", {"x-tenant": "a"}, "t").of(name)
    assert server == Server(url, {"x-tenant": "a"}, token)


def test_credentials_of_the_command_line_come_before_those_of_the_environment() -> None:
    assert Server("http://host/", {}, "t").all_headers() == {"authorization": "Bearer t"}
    assert Server("http://host/", {"Authorization": "Key k"}, "t").all_headers() == {"Authorization": "Key k"}
    assert Server("http://ann:pw@host/", {}, "t").all_headers() == {}


@pytest.mark.parametrize("token", ["", " ", "a b", "a\n", "\u20ac"])
@pytest.mark.parametrize(("is_token_given", "where"), [(True, "--token"), (False, "HEADWATER_TOKEN")])
def test_a_token_that_cannot_be_sent_is_a_wrong_call(token: str, is_token_given: bool, where: str) -> None:
    with pytest.raises(typer.BadParameter) as refusal:
        server_named("http://host", token, None, None, is_token_given=is_token_given)
    assert refusal.value.param_hint == where
    expected = "printable ASCII without spaces" if token.strip() else "a token, but it is empty"
    assert refusal.value.message == f"expected {expected}"
