"""What a decision over a shared store has read, with versions."""

from __future__ import annotations

import pytest

from headwater.engine.catalogue import Catalogue, LoadedDocument, LoadedStream
from headwater.engine.readings import HeldError, Readings, Restoration, UnknownStateError
from headwater.errors import HeadwaterError, UnavailableError
from headwater.log.commands import Append, Reply
from headwater.log.events import Appended, Deleted, DocumentWritten, TimelineBegun
from headwater.log.state import Document
from headwater.store.contract import DocumentKey, version_of
from tests.unit.engine.shared_store import created, loaded, stream_state


def readings(catalogue: Catalogue, *held: LoadedStream | LoadedDocument) -> tuple[Readings, Restoration]:
    restoration = Restoration((), (), (), is_locking=True)
    return Readings(catalogue, dict.fromkeys(held, restoration)), restoration


def test_each_state_that_is_read_is_expected_with_its_newest_version() -> None:
    catalogue = Catalogue()
    stream = loaded(catalogue, stream_state(7, "a", b"xy"))
    catalogue.add_document("d", Document("d", b"1", version=4))
    catalogue.add_document("none", None)
    catalogue.apply(Appended(7, stream.state.tail, 3, b"z"))  # it is not durable, but the newest
    reading, _ = readings(catalogue)
    assert reading.at("a") is stream.state
    assert reading.get(7) is stream.state
    assert reading.at("absent") is None
    assert reading.document("d") == Document("d", b"1", version=4)
    assert reading.document("none") is None
    version = stream.durable_version + 1
    written = version_of(Document("d", b"1", version=4))
    assert reading.expects == {7: version, "absent": 0, DocumentKey("d"): written, DocumentKey("none"): 0}


def test_a_version_is_that_of_the_first_reading() -> None:
    """What the decision itself changes afterwards is not compared."""
    catalogue = Catalogue()
    stream = loaded(catalogue, stream_state(7, "a"))
    catalogue.add_document("d", None)
    reading, _ = readings(catalogue)
    reading.at("a")
    reading.document("d")
    catalogue.apply(Appended(7, 0, 3, b"z"))
    catalogue.apply(DocumentWritten("d", b"1"))
    reading.get(7)
    reading.document("d")
    assert reading.expects == {7: stream.durable_version, DocumentKey("d"): 0}


def test_a_record_expects_that_there_is_no_such_id_and_the_deleted_stream_at_its_path() -> None:
    catalogue = Catalogue()
    loaded(catalogue, stream_state(7, "a"))
    reading, _ = readings(catalogue)
    reading.at("a")
    reading.at("b")
    reading.note((Deleted(7), created(8, "b"), Appended(8, 0, 3, b"x")))
    assert reading.expects == {7: 1, "a": 7, "b": 0, 8: 0}


def test_nothing_is_decided_on_a_state_that_is_being_restored() -> None:
    catalogue = Catalogue()
    stream = loaded(catalogue, stream_state(7, "a"))
    catalogue.add_document("d", None)
    document = catalogue.loaded_document("d")
    assert document is not None
    reading, restoration = readings(catalogue, stream, document)
    for read in (lambda: reading.at("a"), lambda: reading.get(7), lambda: reading.document("d")):
        with pytest.raises(HeldError) as held:
            read()
        assert held.value.restoration is restoration
    assert not reading.expects


def test_a_path_is_not_free_while_the_deletion_of_its_stream_is_taken_back() -> None:
    catalogue = Catalogue()
    stream = loaded(catalogue, stream_state(7, "a"))
    catalogue.apply(Deleted(7))
    assert readings(catalogue)[0].at("a") is None  # by the newest states it is
    with pytest.raises(HeldError):
        readings(catalogue, stream)[0].at("a")


def test_a_state_that_refers_to_one_that_is_not_there_is_outdated() -> None:
    reading, _ = readings(Catalogue())
    with pytest.raises(UnknownStateError):
        reading.get(7)
    with pytest.raises(UnknownStateError):
        reading.document("d")


def test_the_newest_id_is_that_of_a_stream_or_of_a_timeline_that_was_read() -> None:
    catalogue = Catalogue()
    loaded(catalogue, stream_state(7, "a"))
    loaded(catalogue, stream_state(9, "unread"))
    reading, _ = readings(catalogue)
    assert reading.newest_id == 0
    reading.at("a")
    reading.at("absent")
    assert reading.newest_id == 7
    catalogue.apply(TimelineBegun(7, 20))
    assert reading.newest_id == 20


def test_commands_that_wait_for_states_get_the_error_why_these_cannot_be_restored() -> None:
    command = Append("a", 1, b"x", "text/plain")
    answers: list[Reply | HeadwaterError] = []
    restoration = Restoration((), ((command, answers.append),), (), is_locking=True)
    restoration.add(command, answers.append)
    assert [one for one, _ in restoration.waiting] == [command, command]
    error = UnavailableError("no database")
    restoration.refuse(error)
    restoration.add(command, answers.append)  # later ones too
    assert answers == [error] * 3
    assert not restoration.waiting
