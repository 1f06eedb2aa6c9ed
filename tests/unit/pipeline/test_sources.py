"""The streams of a job, and what is not known of them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from headwater import errors
from headwater.client import Client, Retry, StreamInfo
from headwater.errors import HeadwaterError
from headwater.pipeline.options import ArchiveOptions
from headwater.pipeline.sources import JobSource

OFFSET = f"{7:016d}_{0:016d}"
IN_SNAPSHOT = f"{8 * 10**14:016d}_{0:016d}"


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Callable[[httpx.Response], JobSource]:
    """A source whose server has one response for every request."""

    def source(response: httpx.Response) -> JobSource:
        http = httpx.Client(transport=httpx.MockTransport(lambda _: response))
        monkeypatch.setattr(JobSource, "client", lambda _: Client("http://h", http=http, retry=Retry(attempts=1)))
        return JobSource(ArchiveOptions(url="http://h", streams="a", table="t"))

    return source


def problem(status: int, code: str) -> httpx.Response:
    content_type = {"content-type": "application/problem+json"}
    return httpx.Response(status, headers=content_type, json={"type": f"urn:headwater:{code}"})


UNLISTED = [(404, "stream-not-found"), (404, "unknown-route"), (405, "method-not-allowed"), (403, "forbidden")]
FAILURES = [
    (problem(500, "internal"), errors.InternalError),
    (problem(401, "unauthenticated"), errors.RequestError),
    (problem(400, "invalid-request"), errors.RequestError),
    (httpx.Response(200, content=b"<html>"), errors.ProtocolError),
]


@pytest.mark.parametrize(("status", "code"), UNLISTED)
def test_the_first_offset_is_not_known_if_streams_are_not_listed(
    source: Callable[[httpx.Response], JobSource], status: int, code: str
) -> None:
    assert source(problem(status, code)).first_offset("a") is None


@pytest.mark.parametrize(("response", "error"), FAILURES)
def test_a_failed_list_is_an_error(
    source: Callable[[httpx.Response], JobSource], response: httpx.Response, error: type[HeadwaterError]
) -> None:
    with pytest.raises(error):
        source(response).first_offset("a")


def stream_with_snapshot() -> StreamInfo:
    return StreamInfo(path="a", content_type="application/json", tail_offset=OFFSET, first_offset=IN_SNAPSHOT)


@pytest.mark.parametrize("code", ["stream-not-found", "stream-gone", "offset-gone"])
def test_a_stream_that_changes_as_its_beginning_is_asked_for(
    source: Callable[[httpx.Response], JobSource], code: str
) -> None:
    status = 404 if code == "stream-not-found" else 410
    assert source(problem(status, code)).beginning(stream_with_snapshot()) is None


@pytest.mark.parametrize(("response", "error"), FAILURES)
def test_a_failed_request_for_the_beginning_is_an_error(
    source: Callable[[httpx.Response], JobSource], response: httpx.Response, error: type[HeadwaterError]
) -> None:
    with pytest.raises(error):
        source(response).beginning(stream_with_snapshot())
