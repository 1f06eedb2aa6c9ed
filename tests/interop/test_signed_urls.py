"""Signed URLs over both shells of the client: made with a token, used without one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bench.servers import Server, headwater

from headwater.client import Client, Put
from headwater.errors import ForbiddenError, UnauthorizedError
from headwater.server.auth.editing import add_token
from tests.shells import SHELLS, client_of


@pytest.fixture(scope="module")
def auth_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("auth") / "auth.toml"


@pytest.fixture(scope="module")
def token(auth_file: Path) -> str:
    return add_token(auth_file, "app", ["append:orders/**", "create:orders/**", "read:orders/**"], None)[0]


@pytest.fixture(scope="module")
def server(auth_file: Path, token: str) -> Iterator[Server]:
    with headwater("--memory", "--auth", str(auth_file)) as server:
        yield server


@pytest.fixture(params=SHELLS)
def clients(request: pytest.FixtureRequest, server: Server, token: str) -> Iterator[tuple[Client, Client]]:
    """An application with a token, and a visitor without one."""
    url = f"http://{server.host}:{server.port}"
    with client_of(request.param, url, token=token) as application, client_of(request.param, url) as visitor:
        yield application, visitor


def test_a_visitor_appends_with_one_url_and_reads_with_another(
    clients: tuple[Client, Client], request: pytest.FixtureRequest
) -> None:
    application, visitor = clients
    stream = application.stream(f"orders/{request.node.name}")
    stream.create()
    signed = stream.sign(append=True, expires_s=60)
    assert datetime.now(UTC) < signed.expires_at <= datetime.now(UTC) + timedelta(seconds=61)
    theirs = visitor.stream(signed.url, content_type="application/json")
    theirs.append({"n": 1})
    with theirs.producer("visitor", epoch=0) as producer:
        producer.append({"n": 2})
    for refused, error in ((theirs.head, UnauthorizedError), (theirs.delete, UnauthorizedError)):
        with pytest.raises(error):
            refused()
    with pytest.raises(ForbiddenError, match="not to close"):
        theirs.close()
    assert visitor.stream(stream.sign().url).read().all() == [{"n": 1}, {"n": 2}]


def test_tables_are_signed_alike(clients: tuple[Client, Client], request: pytest.FixtureRequest) -> None:
    application, visitor = clients
    table = application.table(f"orders/{request.node.name}")
    table.create()
    visitor.table(table.sign(append=True).url, table_type=table.table_type).append([Put("a", "1")])
    assert list(visitor.table(table.sign().url).active()) == ["a"]


def test_what_cannot_be_signed_is_refused(clients: tuple[Client, Client]) -> None:
    application, visitor = clients
    with pytest.raises(ForbiddenError, match="append:other"):
        application.stream("other").sign(append=True)
    with pytest.raises(UnauthorizedError):
        visitor.stream("orders/x").sign(append=True)
    with pytest.raises(ValueError, match="not a stream or table of this client's server"):
        application.stream("https://elsewhere.example/v1/stream/x").sign()
