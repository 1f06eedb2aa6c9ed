"""Entities of our server by the client, in both shells, and servers that do not fold."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest

from headwater.client import Client, Stream, StreamEntity
from headwater.errors import EntityNotFoundError, NoStateError, ProtocolError, StreamNotFoundError
from headwater.state import Collection


class User(msgspec.Struct):
    id: str
    name: str


users = Collection("user", User)
others = Collection("other/ü", dict, key="id")


@pytest.fixture
def stream(client: Client) -> Stream:
    made = client.stream(f"entities/{uuid.uuid4().hex}/é")
    made.create()
    return made


def test_one_entity(stream: Stream) -> None:
    first = stream.append(users.insert(User("1", "Ann"))).offset
    second = stream.append(users.update(User("1", "Anna"))).offset
    entity = stream.entity("user", "1")
    assert entity == StreamEntity("user", "1", b'{"id":"1","name":"Anna"}', second)
    assert (entity.value, entity.decode(User)) == ({"id": "1", "name": "Anna"}, User("1", "Anna"))
    assert stream.entity("user", "1", at=first).decode(User) == User("1", "Ann")
    assert stream.entity("user", "1", at=datetime.now(UTC) + timedelta(days=1)) == entity
    stream.append(users.update(User("1", "A")), if_tail=entity.offset)
    stream.append(others.insert({"id": "a/b ü"}))
    assert stream.entity("other/ü", "a/b ü").value == {"id": "a/b ü"}


def test_an_entity_that_is_not_there(stream: Stream) -> None:
    offset = stream.append(users.insert(User("1", "Ann"))).offset
    with pytest.raises(EntityNotFoundError, match="no 'user' with the key '2'") as caught:
        stream.entity("user", "2")
    assert caught.value.offset == offset


def test_all_entities_in_pages(stream: Stream) -> None:
    events = [users.insert(User(str(number), "x")) for number in range(25)]
    stream.append_many([*events, others.insert({"id": "1"})])
    names = [("user", key) for key in sorted(map(str, range(25)))]
    for page in (1, 7, 100):
        entities = list(stream.entities("user", page=page))
        assert [(entity.type, entity.key) for entity in entities] == names
        assert [(entity.type, entity.key) for entity in stream.entities(page=page)] == [("other/ü", "1"), *names]
    assert list(stream.entities("none")) == []
    assert list(stream.entities(at="-1")) == []


def test_all_entities_of_one_state_while_there_are_appends(stream: Stream) -> None:
    offset = stream.append_many([users.insert(User(str(number), "old")) for number in range(10)]).offset
    entities = []
    for entity in stream.entities(at=offset, page=2):
        entities.append(entity)
        stream.append_many([users.update(User(str(number), "new")) for number in range(10)])
    assert [entity.decode(User).name for entity in entities] == ["old"] * 10
    assert {entity.offset for entity in entities} == {offset}


def test_streams_without_a_state(client: Client) -> None:
    with pytest.raises(StreamNotFoundError):
        client.stream("entities/none").entity("user", "1")
    text = client.stream(f"entities/{uuid.uuid4().hex}", content_type="text/plain")
    text.create()
    with pytest.raises(NoStateError, match="text/plain"):
        list(text.entities())
    with pytest.raises(ValueError, match="not a stream of this client's server"):
        client.stream("http://127.0.0.1:1/v1/stream/s").entity("user", "1")


@pytest.mark.parametrize("status", [200, 404, 405])
def test_a_server_that_does_not_fold(status: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(200, headers={"stream-next-offset": "1_1", "content-type": "application/json"})
        return httpx.Response(status, text=json.dumps("no"))

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as http,
        Client("http://h/v1/stream/", http=http) as client,
    ):
        with pytest.raises(ProtocolError, match="this server does not fold streams of state events"):
            client.stream("s").entity("user", "1")
        with pytest.raises(ProtocolError, match="does not fold"):
            list(client.stream("s").entities())
