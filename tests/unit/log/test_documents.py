from __future__ import annotations

import pytest

from headwater.errors import DocumentConflictError, StreamNotFoundError
from headwater.log.commands import Append, Create, Delete, WriteDocument, WriteDocuments
from headwater.log.events import DocumentDeleted
from headwater.log.state import Document, evolve_document
from tests.unit.log.world import World


def write(key: str, data: bytes | None, expected: int | None = None) -> WriteDocuments:
    return WriteDocuments((WriteDocument(key, data, expected),))


def test_a_document_is_written_replaced_and_deleted() -> None:
    world = World()
    world.run(write("a", b"1"))
    world.run(write("a", b"2"))
    assert world.documents == {"a": Document("a", b"2", 2)}
    world.run(write("a", None))
    world.run(write("a", None))  # already deleted
    assert world.documents == {}
    with pytest.raises(ValueError, match="does not exist"):
        evolve_document(None, DocumentDeleted("a"))


def test_an_expected_version_protects_from_other_writers() -> None:
    world = World()
    world.run(write("a", b"1", 0))
    with pytest.raises(DocumentConflictError, match="has version 1, expected 0"):
        world.run(write("a", b"2", 0))
    world.run(write("a", b"2", 1))
    with pytest.raises(DocumentConflictError):
        world.run(WriteDocuments((WriteDocument("b", b"new"), WriteDocument("a", b"3", 1))))
    assert world.documents == {"a": Document("a", b"2", 2)}


def test_one_command_can_write_a_key_twice() -> None:
    world = World()
    world.run(WriteDocuments((WriteDocument("a", b"1"), WriteDocument("a", None), WriteDocument("a", None))))
    assert world.documents == {}
    world.run(WriteDocuments((WriteDocument("a", b"1"), WriteDocument("a", b"2", 1))))
    assert world.documents == {"a": Document("a", b"2", 2)}


def test_documents_change_atomically_with_a_stream() -> None:
    world = World()
    position = (WriteDocument("position", b"7"),)
    world.run(Create(path="s", stream_id=1, now_ms=1, content_type="text/plain", documents=position))
    world.run(Append("s", 2, b"rows", "text/plain", documents=(WriteDocument("position", b"8", 1),)))
    assert world.documents["position"].data == b"8"
    with pytest.raises(DocumentConflictError):
        world.run(Append("s", 2, b"rows", "text/plain", documents=(WriteDocument("position", b"9", 1),)))
    state = world.at("s")
    assert state is not None
    assert state.tail == 4
    with pytest.raises(StreamNotFoundError):
        world.run(Delete("other", 3, documents=(WriteDocument("position", None),)))
    world.run(Delete("s", 3, documents=(WriteDocument("position", None),)))
    assert world.documents == {}
