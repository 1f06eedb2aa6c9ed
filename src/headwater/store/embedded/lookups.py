"""Lookups of single rows of the index, which a thread answers in groups.

A thread needs the GIL for each lookup, and beside a busy loop it waits for it up to 5 ms. One after the other, some
hundred lookups a second were possible. So a lookup that comes while all readers are busy waits for the next group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from headwater.limits import INDEX_READERS, LOOKUPS_AT_ONCE

Question = TypeVar("Question")
PendingQuestion = tuple[Question, asyncio.Future[Any]]


class Lookups(Generic[Question]):
    def __init__(self, readers: Executor, answer: Callable[[Question], Any]) -> None:
        self._readers = readers
        self._answer = answer  # in a thread
        self._waiting: deque[PendingQuestion[Question]] = deque()
        self._groups = 0  # being answered

    async def ask(self, question: Question) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._groups < INDEX_READERS:
            self._next_group(asyncio.get_running_loop())
        return await future

    def _next_group(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        group = [waiting.popleft() for _ in range(min(len(waiting), LOOKUPS_AT_ONCE))]
        futures = [future for _, future in group]
        try:
            answers = loop.run_in_executor(self._readers, self._answer_all, [question for question, _ in group])
        except RuntimeError as error:  # the store was closed
            _fail(futures, error)
            return
        self._groups += 1

        def answered(answers: asyncio.Future[list[Any]]) -> None:
            self._groups -= 1
            _pass_on(answers, futures)
            if waiting:
                self._next_group(loop)

        answers.add_done_callback(answered)

    def _answer_all(self, questions: list[Question]) -> list[Any]:
        """The answer to each question, or its error."""
        answers = list[Any]()
        for question in questions:
            try:
                answers.append(self._answer(question))
            except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
                answers.append(_Failure(error))
        return answers


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.error = error


def _pass_on(answers: asyncio.Future[list[Any]], futures: list[asyncio.Future[Any]]) -> None:
    """Give each future its answer."""
    if answers.cancelled():  # the executor was shut down
        _fail(futures, asyncio.CancelledError())
    elif (error := answers.exception()) is not None:
        _fail(futures, error)
    else:
        for future, answer in zip(futures, answers.result(), strict=True):
            if isinstance(answer, _Failure):
                _fail([future], answer.error)
            elif not future.done():  # it is done if its task was cancelled
                future.set_result(answer)


def _fail(futures: list[asyncio.Future[Any]], error: BaseException) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
