from __future__ import annotations

import re
import traceback

from headwater import errors
from headwater.server.problems import problem


def tree(root: type[errors.HeadwaterError]) -> list[type[errors.HeadwaterError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in tree(child))]


def test_every_error_has_a_status_a_title_and_a_problem_body() -> None:
    for kind in (*tree(errors.RequestError), *tree(errors.ServerError)):
        response = problem(kind("what was wrong"))
        assert 400 <= response.status < 600
        assert response.status == kind.status
        assert b"what was wrong" in response.body[0]
        assert kind.title.encode() in response.body[0]


def test_the_docstring_shows_the_whole_tree() -> None:
    shown = dict(re.findall(r"(\w+Error)\s+(\d{3})", errors.__doc__ or ""))
    leaves = {kind for kind in tree(errors.HeadwaterError) if not kind.__subclasses__()}
    assert {kind.__name__: str(kind.status) for kind in leaves if kind.status}.items() <= shown.items()
    for kind in leaves:
        assert kind.__name__ in (errors.__doc__ or "")


def test_every_error_says_what_to_do() -> None:
    for kind in tree(errors.HeadwaterError):
        assert kind.advice.endswith(".")


def test_retryable_follows_from_the_status() -> None:
    for kind in tree(errors.HeadwaterError):
        if kind.status and kind not in (
            errors.DamagedDataError,
            errors.UnknownOutcomeError,
            errors.OutcomePendingError,
        ):  # 500 or 503, but a retry is wrong
            assert kind.retryable == kind().retryable == errors.is_retryable(kind.status), kind
    retryable = {kind for kind in tree(errors.ClientError) if kind.retryable}
    assert retryable == {errors.NetworkError, errors.SparkStartError}
    assert [status for status in range(400, 600) if not errors.is_retryable(status)][-2:] == [501, 505]
    assert [status for status in range(200, 500) if errors.is_retryable(status)] == [408, 425, 429]


def test_codes_are_stable_names() -> None:
    assert errors.StreamNotFoundError().code == "stream-not-found"
    assert errors.InvalidJsonError().code == "invalid-json"


def test_tracebacks_show_the_advice() -> None:
    for kind in tree(errors.HeadwaterError):
        assert kind.advice in "".join(traceback.format_exception(kind("what was wrong")))


def test_the_text_of_an_error_has_no_query() -> None:
    """A query is the client's own, and the signature in it is a secret."""
    error = errors.StreamNotFoundError()
    error.url = "http://h/v1/stream/a?offset=now&signed=secret"
    assert str(error) == "Stream or table not found (http://h/v1/stream/a)"
