"""The tasks of a worker, and the call of its function, asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from headwater.client import forking
from headwater.client.aio.transport import resolved
from headwater.client.forking import Owned, Unpicklable
from headwater.client.working import FunctionFailedError, WorkReport
from headwater.errors import FencedError

if TYPE_CHECKING:
    from headwater.client.aio.reader import AsyncReader


class _InterruptedError(Exception):
    """The call of a coroutine function was cancelled by the worker."""


class AsyncAlarm:
    """An event that a task waits for, with a limit."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.set = self._event.set
        self.clear = self._event.clear

    async def wait(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


class AsyncWorkerBackground(Owned, Unpicklable):
    """Follows the wake stream and sends heartbeats as tasks; the blocking twin uses threads.

    A plain function is called in a thread, so that heartbeats go on. A coroutine function is cancelled when the lease
    is lost.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._process = forking.process()
        self._function = function
        self._lock = contextlib.nullcontext()
        self._news = AsyncAlarm()  # for the loop that claims
        self._beats = AsyncAlarm()  # for the heartbeats
        self._stopping = False
        self._failure: Exception | None = None
        self._reader: AsyncReader[Any] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._call: asyncio.Future[Any] | None = None
        self._is_interrupted = False

    def stop(self) -> None:
        """Stop after the current call of the function: ack what is processed and release the claim.

        It returns at once; `run` returns when the claim is released.
        """
        self._stopping = True
        self._news.set()
        self._beats.set()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _begin(self, *jobs: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks = [asyncio.create_task(self._guarded(job)) for job in jobs]

    async def _guarded(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a job. If it fails, the worker ends with its error."""
        try:
            await job()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._failure = error
            self._news.set()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call_function(self, argument: Any) -> None:
        """Call the function of the user. FencedError if the lease was lost meanwhile, which cancels a coroutine."""
        try:
            if inspect.iscoroutinefunction(self._function):
                await self._run_coroutine(self._function(argument))
            else:
                await self._run_in_thread(argument)
        except _InterruptedError:
            raise FencedError("the lease was lost, so the function was cancelled") from None
        except Exception as error:
            self._check_call()
            raise FunctionFailedError from error
        self._check_call()

    def _check_call(self) -> None:
        """A child process that the function has forked ends with ForkedError if it comes here."""
        self._check_process("a child process that its function forks ends itself with os._exit()")

    async def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._call = asyncio.ensure_future(coroutine)
        try:
            await self._call
        except asyncio.CancelledError:
            if self._is_interrupted and not _is_cancelled():
                raise _InterruptedError from None
            raise
        finally:
            self._call, self._is_interrupted = None, False

    async def _run_in_thread(self, argument: Any) -> None:
        running = asyncio.ensure_future(asyncio.to_thread(self._function, argument))
        try:
            result = await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])  # the thread cannot be stopped, and its events must not be released before
            raise
        await resolved(result)

    def _interrupt_call(self) -> None:
        """Cancel the function, because its events are not this worker's any more."""
        if self._call is not None:
            self._is_interrupted = True
            self._call.cancel()

    async def _hand_out(self, hook: Callable[[WorkReport], Any] | None, report: WorkReport) -> None:
        if hook is not None:
            await resolved(hook(report))

    @contextlib.contextmanager
    def _signals(self, *, wanted: bool) -> Iterator[None]:
        """Stop the worker at SIGTERM and SIGINT. A second signal has the effect that it had before."""
        if not wanted:
            yield
            return
        loop = asyncio.get_running_loop()
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            while previous:
                number, handler = previous.popitem()
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

        def on_signal() -> None:
            restore()
            self.stop()

        for number in previous:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            restore()


def _is_cancelled() -> bool:
    """Whether the current task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
