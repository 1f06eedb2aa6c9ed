"""Both shells of the client behind one blocking face, so that every test runs over both."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from headwater.client import AsyncClient, Client, Stream
from headwater.state import AsyncStreamDB, StateDefinition, StreamDB
from tests.loops import loop_in_thread

SHELLS = ("sync", "async")


@contextlib.contextmanager
def client_of(shell: str, url: str, **options: Any) -> Iterator[Client]:
    if shell == "sync":
        with Client(url, **options) as client:
            yield client
        return
    with loop_in_thread() as loop:
        blocking: Any = _Blocking(loop, _await(loop, _made(AsyncClient, url, **options)))
        try:
            yield blocking
        finally:
            blocking.close()


async def _made(kind: Any, *args: Any, **options: Any) -> Any:
    return kind(*args, **options)


def _await(loop: asyncio.AbstractEventLoop, awaitable: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(awaitable, loop).result()


class _Blocking:
    """An object of the asynchronous shell, waited for: coroutines are run, iterators drained step by step."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def _wrap(self, value: Any) -> Any:
        if inspect.iscoroutinefunction(value):
            return lambda *args, **options: _await(self._loop, value(*args, **options))
        ours = type(value).__module__.startswith(("headwater.client.aio", "headwater.state.aio"))
        if ours or inspect.isasyncgen(value) or hasattr(value, "__aenter__"):
            return _Blocking(self._loop, value)
        return value

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not inspect.isroutine(attribute):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                result = attribute(*args, **options)
                return await result if inspect.iscoroutine(result) else result

            return self._wrap(_await(self._loop, run()))

        return call

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self._target)

        async def step() -> Any:
            return await anext(iterator)

        while True:
            try:
                yield _await(self._loop, step())
            except StopAsyncIteration:
                return

    def __enter__(self) -> Any:
        entered = _await(self._loop, self._target.__aenter__())
        return self if entered is self._target else self._wrap(entered)

    def __exit__(self, *failure: Any) -> None:
        _await(self._loop, self._target.__aexit__(*failure))


def database_of(stream: Stream, definition: StateDefinition, **options: Any) -> Any:
    """A StreamDB of the same shell as the stream."""
    if not isinstance(stream, _Blocking):
        return StreamDB(stream, definition, **options)
    made = _await(stream._loop, _made(AsyncStreamDB, stream._target, definition, **options))
    return _Blocking(stream._loop, made)
