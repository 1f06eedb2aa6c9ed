"""`headwater` commands as processes that start quickly.

Most of a command's processor time is its imports. One process has imported the command line and forks for each command:
a command still has arguments, an environment, standard streams, signals and an exit code of its own. Tests of what an
interpreter does at its start use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import IO, NoReturn

from tests.waiting import LIMIT_S

_IMPORTED = (
    "tests.command_line",  # imports every command
    "headwater.client",
    "headwater.client.sync.transport",
    "headwater.cli.sql.following",
    "headwater.cli.sql.prompt",
    "headwater.sql",
    "httpcore",  # with HTTP/2, whose tables take 0.2 s; httpx imports it when the first client is made
    "httpx",
    "typer._adapters",  # pydantic, which Typer imports when it parses the first command
)
_REQUEST_BYTES_MAX = 1 << 20


class Commands:
    """The process that forks. It is started with the first command and ends with the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def run(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `headwater` with these arguments, in the environment of the tests or another one."""
        env = dict(os.environ if environment is None else environment)
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            source.write(stdin)
            source.seek(0)
            code = self._ask({"arguments": arguments, "env": env, "cwd": os.getcwd()}, [source, out, err])
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(["headwater", *arguments], code, out.read(), err.read())

    def _ask(self, request: object, files: list[IO[bytes]]) -> int:
        with self._lock:
            if self._socket is None:
                self._socket = _start()
            socket.send_fds(self._socket, [json.dumps(request).encode()], [file.fileno() for file in files])
            self._socket.settimeout(LIMIT_S)
            return int(self._socket.recv(100))


def _start() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.commands", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        )

    def end() -> None:
        ours.close()
        process.wait(LIMIT_S)

    atexit.register(end)
    return ours


run_command = Commands().run


def main() -> None:
    """Fork for each request, until the tests have ended."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in _IMPORTED:
        importlib.import_module(name)
    from headwater.cli import main as headwater

    gc.collect()
    gc.freeze()  # otherwise each child copies every page when it collects garbage
    while True:
        data, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not data:
            return
        child = os.fork()
        if child == 0:
            break
        for file in files:
            os.close(file)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(BrokenPipeError):
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
    requests.close()
    request = json.loads(data)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["headwater", *request["arguments"]]
    try:
        headwater()
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit(end.code)
        raise


def _exit(code: int) -> NoReturn:
    """End as an interpreter does, but leave the memory that is shared with the parent as it is."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
