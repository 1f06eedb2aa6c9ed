"""`headwater work`: a worker that runs a command for each wake of a subscription."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headwater import limits
from headwater.cli.connecting import Server, complete_path, complete_subscription, connected
from headwater.cli.failing import fail
from headwater.cli.output import say, warnings_said
from headwater.cli.printing import content_record
from headwater.log.content import ContentKind, kind_of

if TYPE_CHECKING:
    from headwater.client import Claim, Client, WorkBatch


class CommandFailedError(Exception):
    """The command of a worker ended with another exit code than 0."""


def command(
    server: Server,
    execute: Annotated[
        str, typer.Option("--exec", metavar="COMMAND", help="The command, for the shell.", show_default=False)
    ],
    id: Annotated[  # noqa: A002
        str | None,
        typer.Argument(
            metavar="ID", help="The subscription's id.", autocompletion=complete_subscription, show_default=False
        ),
    ] = None,
    wake_stream: Annotated[
        str | None,
        typer.Option(
            help="Work for all subscriptions that wake through this stream.",
            metavar="PATH",
            autocompletion=complete_path,
            show_default=False,
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Who holds the lease. Default: host, process and random.", show_default=False
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is pending now, and exit.")] = False,
) -> None:
    """Run a command for each wake of a subscription, with the pending events on its standard input.

    Each line of the input is a JSON object with subscription, stream, offset (after the events) and messages; text or
    base64 instead for a stream that is not JSON. HEADWATER_SUBSCRIPTION, HEADWATER_GENERATION and HEADWATER_WORKER are
    set.

    If the command exits with 0, all events of the wake are acked. Otherwise they stay pending and are tried again after
    a wait, by this or another worker. SIGTERM and Ctrl-C wait for the command, ack, and exit.
    """
    if (id is None) == (wake_stream is None):
        raise typer.BadParameter("give the id of a subscription, or --wake-stream", param_hint="ID")
    if not execute.strip():
        raise typer.BadParameter("give a command; an empty one would ack all events", param_hint="--exec")
    if once and id is None:
        raise typer.BadParameter("--once needs the id of a subscription", param_hint="--once")
    with warnings_said(), connected(server) as client:
        wakes = _Wakes(client, execute)
        if id is None:
            crew = client.worker(wake_stream or "", wakes.run, name=worker, per="wake")
        else:
            crew = client.subscription(id).worker(wakes.run, name=worker, per="wake")
        wakes.worker = crew.name
        if not once:
            crew.run(signals=True)
            return
        try:
            if not crew.run_once(signals=True):
                say("nothing is pending, or another worker processes it", err=True)
        except CommandFailedError as error:
            fail(f"the command failed: {error}", "Its events stay pending.")


class _Wakes:
    """Runs the command for wakes, one at a time."""

    def __init__(self, client: Client, execute: str) -> None:
        self.worker = ""
        self._client = client
        self._execute = execute
        self._kinds: dict[str, ContentKind] = {}

    def run(self, claim: Claim) -> None:
        """Run the command with the events of a claim; CommandFailedError if its exit code is not 0."""
        environment = {
            **os.environ,
            "HEADWATER_SUBSCRIPTION": claim.subscription,
            "HEADWATER_GENERATION": str(claim.generation),
            "HEADWATER_WORKER": self.worker,
        }
        # A group of its own: Ctrl-C is for the worker, which waits for the command.
        process = subprocess.Popen(  # noqa: S603  # it is the user's own command
            ["/bin/sh", "-c", self._execute],
            stdin=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        threading.Thread(target=_watch, args=(process, claim), daemon=True).start()
        try:
            self._feed(process, claim)
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        if claim.is_lost:
            raise CommandFailedError("the lease was lost, so the command was ended")
        if code:
            raise CommandFailedError(f"exit code {code}" if code > 0 else f"signal {-code}")

    def _feed(self, process: subprocess.Popen[bytes], claim: Claim) -> None:
        """Write the events to the command. One that does not read all of them decides by its exit code, too."""
        is_open = True
        for batch in claim.batches(bytes):
            if is_open and batch.messages:
                is_open = _written(process, msgspec.json.encode(self._record(batch)) + b"\n")
        if process.stdin is not None and is_open:
            _written(process, b"", end=True)

    def _record(self, batch: WorkBatch[bytes]) -> dict[str, Any]:
        kind = self._kinds.get(batch.stream)
        if kind is None:
            kind = kind_of(self._client.stream(batch.stream).head().content_type)
            if len(self._kinds) < limits.CLI_STREAMS_KNOWN_MAX:
                self._kinds[batch.stream] = kind
        members = {"subscription": batch.subscription, "stream": batch.stream, "offset": batch.offset}
        return members | content_record(batch.messages, kind)


def _watch(process: subprocess.Popen[bytes], claim: Claim) -> None:
    """End a command if its events are not this worker's any more."""
    while process.poll() is None:
        if claim.is_lost:
            _end(process)
        time.sleep(limits.CLI_WORK_LOOK_S)


def _written(process: subprocess.Popen[bytes], data: bytes, *, end: bool = False) -> bool:
    """Write to the command; False if it does not read any more."""
    if process.stdin is None:
        return False
    try:
        process.stdin.write(data)
        process.stdin.close() if end else process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limits.CLI_WORK_END_S)
            return
