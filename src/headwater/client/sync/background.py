"""The threads of a worker, and the call of its function, blocking."""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headwater import limits
from headwater.client import forking
from headwater.client.forking import Owned, Unpicklable
from headwater.client.working import FunctionFailedError, WorkReport

if TYPE_CHECKING:
    from headwater.client.sync.reader import Reader


class WorkerBackground(Owned, Unpicklable):
    """Follows the wake stream and sends heartbeats in threads; the asyncio twin uses tasks.

    The function is called in the thread of `run`.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise TypeError("a coroutine function needs AsyncClient")
        self._process = forking.process()
        self._function = function
        self._lock = threading.Lock()
        self._news = threading.Event()  # for the loop that claims
        self._beats = threading.Event()  # for the heartbeats
        self._stopping = False
        self._failure: Exception | None = None
        self._reader: Reader[Any] | None = None
        self._threads: list[threading.Thread] = []

    def stop(self) -> None:
        """Stop after the current call of the function: ack what is processed and release the claim.

        It returns at once; `run` returns when the claim is released.
        """
        self._stopping = True
        self._news.set()
        self._beats.set()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _begin(self, *jobs: Callable[[], None]) -> None:
        self._threads = [
            threading.Thread(target=self._guarded, args=(job,), name="headwater-worker", daemon=True) for job in jobs
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, job: Callable[[], None]) -> None:
        """Run a job. If it fails, the worker ends with its error."""
        try:
            job()
        except Exception as error:  # noqa: BLE001  # `run` raises it
            self._failure = error
            self._news.set()

    def _end(self) -> None:
        if self._reader is not None and self._is_here():
            self._reader.close()
        for thread in self._threads:
            thread.join(limits.WORK_STOP_S)

    def _call_function(self, argument: Any) -> None:
        """Call the function of the user. A child process that it has forked ends with ForkedError if it comes here."""
        try:
            self._function(argument)
        except Exception as error:
            self._check_call()
            raise FunctionFailedError from error
        self._check_call()

    def _check_call(self) -> None:
        self._check_process("a child process that its function forks ends itself with os._exit()")

    def _interrupt_call(self) -> None:
        """A function in a thread cannot be interrupted; what it has done is not acked."""

    def _hand_out(self, hook: Callable[[WorkReport], Any] | None, report: WorkReport) -> None:
        if hook is not None:
            hook(report)

    @contextlib.contextmanager
    def _signals(self, *, wanted: bool) -> Iterator[None]:
        """Stop the worker at SIGTERM and SIGINT. A second signal has the effect that it had before."""
        if not wanted:
            yield
            return
        previous: dict[int, Any] = {}

        def restore() -> None:
            while previous:
                signal.signal(*previous.popitem())

        def on_signal(number: int, frame: object) -> None:
            restore()
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, on_signal)
        try:
            yield
        finally:
            restore()
