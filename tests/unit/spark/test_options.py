"""Options without effect are refused, and the error suggests the right name."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.spark.options import read_options, write_options

READ = {"url": "http://127.0.0.1:4437", "streams": "a"}
WRITE = {"url": "http://127.0.0.1:4437", "stream": "a"}


@pytest.mark.parametrize(
    ("name", "told"),
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
def test_unknown_options_of_a_source(name: str, told: str) -> None:
    for bounded in (None, True, False):
        with pytest.raises(OptionError) as caught:
            read_options({**READ, name: "1"}, bounded=bounded, state=False)
        assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("txnAppId", "did you mean writeId?"),
        ("txnVersion", "did you mean writeVersion?"),
        ("topic", "did you mean stream?"),
        ("path", "did you mean stream?"),
        ("nonFiniteNumbers", "it is an option of the format stream-state"),
        ("maxRecordsPerTrigger", "the options are url, token"),
    ],
)
def test_unknown_options_of_a_sink(name: str, told: str) -> None:
    with pytest.raises(OptionError) as caught:
        write_options({**WRITE, name: "1"}, state=False)
    assert told in str(caught.value)


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
