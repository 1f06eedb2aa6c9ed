"""Options without effect are refused, and the error suggests the right name."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.spark.options import BadEvents, StateReadOptions, read_options, write_options

READ = {"url": "http://127.0.0.1:4437", "streams": "a"}
WRITE = {"url": "http://127.0.0.1:4437", "stream": "a"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("valueSchema", "no option valueschema; it is an option of the format stream-state"),
        ("valueSchema.user", "no option valueschema.user; it is an option of the format stream-state"),
        ("badEvents", "it is an option of the format stream-state"),
        ("topic", "did you mean streams?"),
        ("subscribe", "did you mean streams?"),
        ("path", "did you mean streams?"),
        ("maxOffsetsPerTrigger", "did you mean maxRecordsPerTrigger?"),
        ("startingVersion", "did you mean startingOffsets?"),
        ("kafka.bootstrap.servers", "did you mean url?"),
        ("createTarget", "the options are url, token"),
        ("colour", "the options are url, token"),
    ],
)
def test_unknown_options_of_a_source(name: str, message: str) -> None:
    for bounded in (None, True, False):
        with pytest.raises(OptionError) as caught:
            read_options({**READ, name: "1"}, bounded=bounded, state=False)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("txnAppId", "did you mean writeId?"),
        ("txnVersion", "did you mean writeVersion?"),
        ("topic", "did you mean stream?"),
        ("path", "did you mean stream?"),
        ("nonFiniteNumbers", "it is an option of the format stream-state"),
        ("maxRecordsPerTrigger", "the options are url, token"),
    ],
)
def test_unknown_options_of_a_sink(name: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options({**WRITE, name: "1"}, state=False)
    assert message in str(caught.value)


def test_options_for_streaming_queries_or_batches_only() -> None:
    for name in ("maxRecordsPerTrigger", "maxBytesPerTrigger", "longPollTimeout"):
        read_options({**READ, name: "1"}, bounded=False)
        read_options({**READ, name: "1"}, bounded=None)
        with pytest.raises(OptionError, match=f"{name} is for streaming queries; remove it"):
            read_options({**READ, name: "1"}, bounded=True)
    read_options({**READ, "endingOffsets": "latest"}, bounded=None)
    with pytest.raises(OptionError, match="endingOffsets is for batch reads"):
        read_options({**READ, "endingOffsets": "latest"}, bounded=False)


def test_valid_options() -> None:
    read_options({**READ, "valueSchema.user": "a INT", "badEvents": "skip"}, bounded=True)
    read_options({**READ, "VALUETYPE": "string"}, bounded=True, state=False)
    write_options({**WRITE, "checkpointLocation": "x", "queryName": "q"}, state=False)
    with pytest.raises(OptionError, match="valuetype"):
        read_options({**READ, "valueType": "string"}, bounded=True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("minPartitions", "0", "minPartitions must be a number above 0, got '0'"),
        ("minPartitions", "1.5", "minPartitions must be a number above 0, got '1.5'"),
        ("maxRecordsPerTrigger", "null", "maxRecordsPerTrigger must be a number above 0, got 'null'"),
        ("longPollTimeout", "inf", "longPollTimeout must be a number above 0, got 'inf'"),
        ("failOnDataLoss", "1", "failOnDataLoss must be true or false, got '1'"),
        ("badEvents", "drop", "badEvents must be fail or skip or keep or keepMessages or deadLetter, got 'drop'"),
        ("startingOffsets", "first", "startingOffsets must be earliest or latest or snapshot, or JSON such as"),
        ("startingOffsets", '{"b": "latest"}', "startingOffsets names b, which the option streams does not name"),
        ("startingTimestamp", "soon", "startingTimestamp must be a time such as"),
        ("valueSchema", "{", "valueSchema must be"),
    ],
)
def test_invalid_values(name: str, text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({**READ, name: text}, bounded=None)
    assert message in str(caught.value)


def test_invalid_values_of_a_sink() -> None:
    for text in ("-1", "x", str(2**63)):
        with pytest.raises(OptionError, match=r"writeVersion must be a number from 0 to \d+, got "):
            write_options({**WRITE, "writeId": "w", "writeVersion": text})


def test_values() -> None:
    texts = {**READ, "BADEVENTS": "KeepMessages", "minPartitions": " 3 ", "longPollTimeout": "2", "stream": "/b/"}
    options = read_options({**texts, "failOnDataLoss": "FALSE", "types": "x, y", "pattern": " "}, bounded=False)
    assert isinstance(options, StateReadOptions)
    assert (options.bad_events, options.min_partitions, options.long_poll_timeout) == (BadEvents.KEEP_MESSAGES, 3, 2)
    assert (options.streams, options.pattern) == (("a", "b"), None)
    assert (options.fail_on_data_loss, options.types) == (False, frozenset({"x", "y"}))
