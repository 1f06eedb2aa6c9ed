"""The two shells are one API: the same names, the same parameters, the same documentation."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from headwater.client import aio, sync
from headwater.state import AsyncStreamDB, StreamDB

NAMES = (
    *("Client", "Stream", "Reader", "Follow", "Producer", "Table", "TableReader"),
    *("Subscription", "Claim", "Worker", "WebhookVerifier"),
)
PAIRS = [
    *((getattr(sync, name), getattr(aio, f"Async{name}")) for name in NAMES),
    (StreamDB, AsyncStreamDB),
]
ONLY_ASYNCHRONOUS = {"changes"}  # a blocking program has callbacks
RENAMED = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__"}
IN_THREADS_ONLY = ", in another thread"
CONCURRENT = (("another thread waits", "another task waits"), ("the thread that follows", "the task that follows"))
HOOKS = {
    "token",
    "on_error",
    "http",
}  # coroutine functions and another httpx client are welcome to the asynchronous one


def public(kind: type) -> dict[str, Any]:
    dunder = {*RENAMED, *RENAMED.values(), "__init__"}
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") or name in dunder}


def plain(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else str(annotation)
    text = re.sub(r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]", text)
    text = re.sub(rf"\bAsync({'|'.join(NAMES)}|StreamDB|Iterator)\b", r"\1", text)
    return text.replace("Awaitable[None]", "None")


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_same_names_parameters_and_documentation(blocking: type, asynchronous: type) -> None:
    one, other = public(blocking), public(asynchronous)
    assert {RENAMED.get(name, name) for name in one} == set(other) - ONLY_ASYNCHRONOUS
    for name, value in one.items():
        twin = other[RENAMED.get(name, name)]
        if isinstance(value, property):
            value, twin = value.fget, twin.fget
        mine, its = inspect.signature(value), inspect.signature(twin)
        assert list(mine.parameters) == list(its.parameters), name
        for parameter in mine.parameters.values():
            counterpart = its.parameters[parameter.name]
            assert (parameter.kind, parameter.default) == (counterpart.kind, counterpart.default), name
            if parameter.name not in HOOKS:
                assert plain(parameter.annotation) == plain(counterpart.annotation), (name, parameter.name)
        assert plain(mine.return_annotation) == plain(its.return_annotation), name
        documented = (inspect.getdoc(value) or "").replace(IN_THREADS_ONLY, "")
        for words in CONCURRENT:
            documented = documented.replace(*words)
        its_own = re.sub(r"\b(async|await) ", "", inspect.getdoc(twin) or "")  # in examples
        assert documented == its_own, name


def test_what_waits_is_a_coroutine() -> None:
    at_once = {
        "stream",
        "read",
        "producer",
        "list",
        "records",
        "record_times",
        "entities",
        "batches",
        "headers",
        "__init__",
        "__repr__",
        "__aiter__",
    }
    at_once |= {"tables", "rows", "follow", "mirror"}
    at_once |= {"subscription", "subscriptions", "worker", "answer", "stop", "webhook_verifier"}
    at_once |= {"changes", "table", "on_change", "transaction", "action"}
    for _, asynchronous in PAIRS:
        for name, value in public(asynchronous).items():
            if callable(value) and name not in at_once:
                assert inspect.iscoroutinefunction(value), f"{asynchronous.__name__}.{name}"
