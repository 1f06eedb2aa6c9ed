"""Durable effects of a job, at the lowest layers that they pass in Python, and the places in the code that cause them.

An effect is a change of a Delta table (every method of delta-rs that is not known to only read), a request to the
server that is not a read, or a change of a file. `Life` counts them as a job runs and ends the job at a chosen one.
`sites` finds the calls in the source that can cause an effect, so that a test can say which of them no job has reached.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import msgspec
import pytest
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from deltalake.table import TableAlterer, TableMerger, TableOptimizer

import headwater
from headwater.client import Client, Producer, Stream, Table

SOURCE = Path(headwater.__file__).parent
PACKAGES = ("pipeline", "spark")  # the code of the jobs; what they call elsewhere is reached from there

# What is not listed here counts as an effect, so that a new method is one until someone says that it only reads.
_DELTA_READS = frozenset(
    {
        *("alter", "count", "deletion_vectors", "file_uris", "get_add_actions", "history", "is_deltatable"),
        *("load_as_version", "load_cdf", "merge", "metadata", "optimize", "partitions", "protocol", "scan", "schema"),
        *("table_config", "table_uri", "to_pandas", "to_pyarrow_dataset", "to_pyarrow_table", "transaction_version"),
        *("update_incremental", "version"),
        *("when_matched_delete", "when_matched_update", "when_matched_update_all", "when_not_matched_by_source_delete"),
        *("when_not_matched_by_source_update", "when_not_matched_insert", "when_not_matched_insert_all"),
        *("from_table", "get_file_info", "get_file_info_selector", "get_type_name", "normalize_path"),
        *("open_input_file", "open_input_stream", "equals"),
    }
)
_CLIENT_READS = frozenset(
    {
        *("active", "client", "epoch", "follow", "get", "head", "headers", "id", "info", "list", "metrics", "nurl"),
        *("nurls", "offset_at", "path", "producer", "read", "record_times", "records", "rows", "splits", "stream"),
        *("table", "tables", "flush", "arrow", "batches", "entities", "entity"),
    }
)
_FILES = frozenset({"mkdir", "rename", "replace", "rmtree", "save", "start", "symlink", "touch", "unlink"})
_COMMON = frozenset({"append", "close", "replace", "start", "update"})  # also of lists, threads, structs and others
_REMOTE = frozenset({"named", "producer", "stream", "table", "target", "writer"})
_READ_METHODS = ("GET", "HEAD", "OPTIONS")
_DELTA = (DeltaTable, TableMerger, TableAlterer, TableOptimizer, DeltaStorageHandler)


class Killed(BaseException):
    """The process ended here. Not an Exception, so that no handler of the job goes on."""


class LostError(Exception):
    """The same in a thread that nobody would wait for any more."""


class Site(msgspec.Struct, frozen=True, order=True):
    """A call that can cause an effect."""

    file: str  # below the package
    function: str
    called: str
    first: int = 0
    last: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.function}: {self.called}"


def effect_names() -> frozenset[str]:
    """The names of functions whose calls cause effects."""
    names = {name for kind in _DELTA for name in _public(kind)} - _DELTA_READS
    names |= {name for kind in (Client, Stream, Table, Producer) for name in _public(kind)} - _CLIENT_READS
    return frozenset(names | _FILES)


def _public(kind: type) -> Iterator[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


@functools.cache
def sites() -> list[Site]:
    """Every call in the code of the jobs that can cause an effect."""
    names = effect_names()
    calls = []
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            calls += [
                Site(str(path.relative_to(SOURCE)), function, called, node.lineno, node.end_lineno or node.lineno)
                for function, node in _calls(tree, "")
                if (called := _called(node, names)) is not None
            ]
    return calls


def _calls(tree: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        within = function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            within = f"{function}.{node.name}" if function else node.name
        if isinstance(node, ast.Call):
            yield within, node
        yield from _calls(node, within)


def _called(node: ast.Call, names: frozenset[str]) -> str | None:
    match node.func:
        case ast.Attribute(value=receiver, attr=name) if name in names:
            is_file = name == "replace" and isinstance(receiver, ast.Name) and receiver.id == "os"
            return name if name not in _COMMON or is_file or _is_remote(receiver) else None
        case ast.Name(id=name) if name in names - _COMMON:
            return name
    return None


def _is_remote(receiver: ast.expr) -> bool:
    """Whether an object with a common method is a stream, a table, or another thing that lasts, by its name."""
    match receiver:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Attribute(attr=name) | ast.Name(id=name):
            return name.strip("_") in _REMOTE
    return False


class Effect(msgspec.Struct, frozen=True):
    """An effect as it happened: what it was, and the sites on the stack, the innermost first."""

    what: str
    sites: tuple[Site, ...]

    def __str__(self) -> str:
        return f"{self.what} by {self.sites[0]}" if self.sites else self.what


class Life:
    """The life of a process: it counts effects, and dies before the one with the number `dies_at`."""

    def __init__(self, dies_at: int | None = None) -> None:
        self._dies_at = dies_at
        self._lock = threading.Lock()
        self._inside = threading.local()
        self.effects: list[Effect] = []
        self.is_over = False

    def happens(self, what: str, frame: FrameType | None) -> None:
        """Called before an effect."""
        with self._lock:
            if self._dies_at is not None and len(self.effects) == self._dies_at:
                self.is_over = True
            if not self.is_over:
                self.effects.append(Effect(what, tuple(_on_stack(frame))))
                return
        if threading.current_thread().name.startswith("headwater-producer"):
            raise LostError(what)
        raise Killed(what)

    @contextlib.contextmanager
    def within(self) -> Iterator[bool]:
        """Whether this is the outermost effect of the thread; what it causes itself is part of it."""
        is_outer = not getattr(self._inside, "depth", 0)
        self._inside.depth = getattr(self._inside, "depth", 0) + 1
        try:
            yield is_outer
        finally:
            self._inside.depth -= 1


_SESSION = str(Path(__file__).parent / "session.py")
_lives: list[Life] = []  # the current one, if any
_is_listening = False


def _on_stack(frame: FrameType | None) -> Iterator[Site]:
    by_file: dict[str, list[Site]] = {}
    for site in sites():
        by_file.setdefault(str(SOURCE / site.file), []).append(site)
    while frame is not None:
        for site in by_file.get(frame.f_code.co_filename, ()):
            if site.first <= frame.f_lineno <= site.last and site.function.endswith(frame.f_code.co_name):
                yield site
        frame = frame.f_back


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Changes of files, which Python announces before it makes them."""
    if not _lives:
        return
    if event == "open":
        path, _, flags = args
        is_change = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if not is_change or not isinstance(path, str | bytes | os.PathLike):
            return
    elif event not in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"):
        return
    name, frame = os.fsdecode(args[0]), sys._getframe(1)
    if event == "os.mkdir" and os.path.isdir(name):
        return
    owner = _owner_of(frame)
    if owner is None or (owner == _SESSION and event != "os.rename"):  # Spark's files count when they get their names
        return
    life = _lives[-1]
    with life.within() as is_outer:
        if is_outer:
            life.happens(f"{event} {Path(name).name}", frame)


def _owner_of(frame: FrameType | None) -> str | None:
    """The file of the job's code that changes a file. None if the interpreter, the server or pytest do it."""
    own = (*(str(SOURCE / package) for package in PACKAGES), _SESSION)
    while frame is not None and "importlib" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith(own):
            return frame.f_code.co_filename
        frame = frame.f_back
    return None


def _observed(owner: str, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if not _lives:
            return change(*args, **kwargs)
        life = _lives[-1]
        with life.within() as is_outer:
            if is_outer:
                life.happens(f"{owner}.{name}", sys._getframe(1))
            return change(*args, **kwargs)

    return observed


def _observed_requests(send: Callable[..., httpx.Response]) -> Callable[..., httpx.Response]:
    def observed(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        if _lives and request.method not in _READ_METHODS:
            life = _lives[-1]
            life.happens(f"{request.method} {request.url.path}", sys._getframe(1))
            response = send(transport, request)
            response.read()
            return response
        return send(transport, request)

    return observed


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Install the hooks. They do nothing while nobody lives."""
    global _is_listening
    with pytest.MonkeyPatch.context() as patch:
        for kind in _DELTA:
            for name in set(_public(kind)) - _DELTA_READS:
                change = kind.__dict__.get(name)
                if isinstance(change, classmethod):
                    patch.setattr(kind, name, classmethod(_observed(kind.__name__, name, change.__func__)))
                elif callable(getattr(kind, name)):
                    patch.setattr(kind, name, _observed(kind.__name__, name, getattr(kind, name)))
        patch.setattr(httpx.HTTPTransport, "handle_request", _observed_requests(httpx.HTTPTransport.handle_request))
        if not _is_listening:
            sys.addaudithook(_audit)  # cannot be removed
            _is_listening = True
        yield


def live(work: Callable[[], None], dies_at: int | None = None) -> Life:
    """Let a process do its work until its end or its death. All that it had in memory is lost with it."""
    life = Life(dies_at)
    _lives.append(life)
    report = threading.excepthook
    threading.excepthook = lambda args: None if life.is_over else report(args)
    try:
        work()
    except (Killed, Exception):
        if not life.is_over:
            raise
    finally:
        _lives.remove(life)
        threading.excepthook = report
    return life
