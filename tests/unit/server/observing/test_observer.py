"""What is counted of answers, which of them are timed, and the ids of requests."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import StreamNotFoundError
from headwater.limits import TIMED_ONE_OF, TIMED_PER_S_MAX
from headwater.server.http import NO_ROUTE, REQUEST_ID, Request, Response
from headwater.server.observing import Observer
from headwater.server.problems import problem


class Noted:
    def __init__(self) -> None:
        self.requests: list[Request] = []

    def note(self, request: Request, response: Response, took_s: float) -> None:
        assert took_s >= 0
        self.requests.append(request)

    def reopen(self) -> None: ...

    def close(self) -> None: ...


def request(route: int = 3, began_s: float = 0.0, **headers: str) -> Request:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("GET", "/v1/stream/a", "", names, b"", route=route, began_s=began_s)


def test_answers_are_counted_by_route_and_class() -> None:
    observer = Observer()
    for status in (200, 204, 304, 404, 410, 503):
        observer.answered(request(), Response(status))
    observer.answered(request(NO_ROUTE), Response(404))
    assert observer.statuses(3) == {"2xx": 2, "3xx": 1, "4xx": 2, "5xx": 1}
    assert observer.statuses(NO_ROUTE) == {"4xx": 1}
    assert observer.statuses(4) == {}


def test_only_requests_that_began_at_a_known_time_are_timed() -> None:
    observer = Observer()
    observer.answered(request(), Response(200))
    assert not observer.durations
    observer.answered(request(began_s=1e-9), Response(200))
    assert observer.durations[3].count == 1


def test_all_requests_are_timed_until_there_are_many() -> None:
    observer = Observer()
    assert all(observer.is_timed() for _ in range(100))
    observer.successes[3] += TIMED_PER_S_MAX + 1
    observer.tick(1.0)
    assert sum(observer.is_timed() for _ in range(10 * TIMED_ONE_OF)) == 10
    observer.tick(1.0)
    assert all(observer.is_timed() for _ in range(100))


def test_a_watcher_sees_every_request_timed() -> None:
    noted = Noted()
    observer = Observer((noted,))
    observer.successes[3] += 100 * TIMED_PER_S_MAX
    observer.tick(1.0)
    assert all(observer.is_timed() for _ in range(100))
    response = Response(204)
    observer.answered(request(began_s=1e-9), response)
    assert [one.id for one in noted.requests] == [dict(response.headers)[REQUEST_ID]]


def test_a_success_has_no_id_and_an_error_has_one() -> None:
    observer = Observer()
    fine, wrong = Response(200), problem(StreamNotFoundError('it\'s "gone"\n'))
    observer.answered(request(), fine)
    observer.answered(request(), wrong)
    assert fine.headers == ()
    document = msgspec.json.decode(bytes(wrong.body[0]))
    assert document["request_id"] == dict(wrong.headers)[REQUEST_ID]
    assert document["detail"] == 'it\'s "gone"\n'


def test_ids_are_not_the_same_twice() -> None:
    observer = Observer()
    assert len({observer.identify(request()) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("given_id", ["abc", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "a/b:c@d+e=f~g._", "x" * 128])
def test_a_sane_id_is_taken(given_id: str) -> None:
    response = problem(StreamNotFoundError("gone"))
    Observer().answered(request(x_request_id=given_id), response)
    assert msgspec.json.decode(bytes(response.body[0]))["request_id"] == given_id


@pytest.mark.parametrize("given_id", ["", "x" * 129, 'a"b', "a b", "a\nb", "a\\b", "é", "a\x00", "<a>", "a\n"])
def test_an_id_that_is_not_sane_is_replaced(given_id: str) -> None:
    asking = request(x_request_id=given_id)
    assert Observer().identify(asking) != given_id


@given(st.text(max_size=200))
def test_no_id_breaks_the_document_or_the_header(given_id: str) -> None:
    response = problem(StreamNotFoundError("gone"))
    Observer().answered(request(x_request_id=given_id), response)
    document = msgspec.json.decode(bytes(response.body[0]))
    assert document["request_id"].isascii()
    assert document["request_id"].isprintable()
    assert document["status"] == 404


def test_a_500_has_a_line_in_the_log_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "headwater.server"):
        Observer().answered(request(x_request_id="the-id"), Response(500))
    assert "the-id" in caplog.text
