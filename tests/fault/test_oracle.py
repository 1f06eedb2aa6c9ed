"""What the oracle of the simulations takes for a broken promise."""

from __future__ import annotations

import pytest

from tests.fault.oracle import BrokenPromiseError, check_messages


def test_the_messages_of_a_writer_for_one_stream_are_in_order_and_stored_once() -> None:
    assert check_messages("a", b"<created:4><w1@4:1><w2@4:9..><w1@4:3>") == {1, 3, 9}
    with pytest.raises(BrokenPromiseError, match="out of order"):
        check_messages("a", b"<w1@4:3><w1@4:1>")
    with pytest.raises(BrokenPromiseError, match="stored twice"):
        check_messages("a", b"<w1@4:3><w2@4:4><w1@4:3>")


def test_an_append_that_waited_reaches_a_fork_after_later_messages_to_its_source() -> None:
    assert check_messages("fork/1", b"<w5@96:184><created:110><w5@80:169>") == {169, 184}
