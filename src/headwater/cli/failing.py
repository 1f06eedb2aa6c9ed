"""Turns errors into one line on standard error, with advice, and an exit code that scripts can rely on."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn
from urllib.parse import unquote, urlsplit

import typer

from headwater import errors
from headwater.cli.output import say
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.protocol.tables.paths import TABLE_ROOT

FAILED = 1
WRONG_CALL = 2
NOT_FOUND = 3
CONFLICT = 4
REFUSED = 5
UNAVAILABLE = 6
INTERRUPTED = 130

_CODES: tuple[tuple[type[errors.HeadwaterError], int], ...] = (
    (errors.StreamNotFoundError, NOT_FOUND),
    (errors.ViewSourceNotFoundError, NOT_FOUND),
    (errors.SubscriptionNotFoundError, NOT_FOUND),
    (errors.EntityNotFoundError, NOT_FOUND),
    (errors.StreamGoneError, NOT_FOUND),
    (errors.OffsetGoneError, NOT_FOUND),
    (errors.ConflictError, CONFLICT),
    (errors.TailMovedError, CONFLICT),
    (errors.StaleEpochError, CONFLICT),
    (errors.UnauthorizedError, REFUSED),
    (errors.ForbiddenError, REFUSED),
    (errors.TargetRefusedError, REFUSED),
    (errors.OptionError, WRONG_CALL),
    (errors.SqlDataError, FAILED),
    (errors.SqlError, WRONG_CALL),
    (errors.InvalidPathError, WRONG_CALL),
    (errors.TooManyRequestsError, UNAVAILABLE),
    (errors.ServerError, UNAVAILABLE),
    (errors.NetworkError, UNAVAILABLE),
)
_SYSTEM: dict[int | None, str] = {
    errno.ENOENT: "Check the path.",
    errno.EACCES: "Use another path, or ask its owner for permission.",
    errno.EPERM: "Use another path, or ask its owner for permission.",
    errno.EROFS: "Use a path on a disk that can be written to.",
    errno.ENOSPC: "Make room on the disk, then run it again.",
    errno.EDQUOT: "Make room on the disk, then run it again.",
    errno.EISDIR: "Give the path of a file.",
    errno.ENOTDIR: "Give the path of a directory.",
    errno.ENOTEMPTY: "Give a path that does not exist yet.",
    errno.EEXIST: "Give a path that does not exist yet.",
    errno.EBUSY: "Stop that process, or use another directory.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
}
_LISTENING: dict[int | None, tuple[str, str]] = {
    errno.EADDRINUSE: ("the port is in use", "Stop the server that uses it, or choose another port with --port."),
    errno.EADDRNOTAVAIL: ("it is not an address of this machine", "Choose one with --host."),
    errno.EACCES: ("permission denied", "Choose a port of 1024 or more with --port."),
}
_STARTING = "Start one with: headwater serve"


@contextlib.contextmanager
def failures(listening: str = "") -> Iterator[None]:
    """Report errors of servers, data directories, files and sockets as one line, without a traceback."""
    try:
        yield
    except errors.HeadwaterError as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
        fail(*described(error), code=code)
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. That is not an error, but Python would report it at exit.
        _discard_output()
        raise typer.Exit(0) from None
    except OSError as error:
        _fail_system(error, listening)
    except ValueError as error:
        fail(str(error), "Correct it and run the command again.", code=WRONG_CALL)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        _fail_directory(error)
        raise


def _fail_directory(error: Exception) -> None:
    """Fail if the error is one of a data directory or a backup. Commands that have none do not import the store."""
    import sqlite3

    from headwater.store.copying import CopyError
    from headwater.store.embedded.backup.failures import BackupError
    from headwater.store.embedded.journal import CorruptJournalError, DirectoryError, UnknownFormatError

    if isinstance(error, CorruptJournalError):
        fail(str(error), "Nothing was changed. See `headwater check --help` for how to verify and salvage it.")
    if isinstance(error, UnknownFormatError):
        fail(str(error), "Use another directory, or the version of Headwater that wrote this one.")
    if isinstance(error, (BackupError, CopyError, DirectoryError)):
        fail(str(error))  # says what to do
    if isinstance(error, sqlite3.DatabaseError):
        fail(f"the index of the data directory failed: {error}", "Check the disk, then: headwater check DIRECTORY")


def _fail_system(error: OSError, listening: str) -> NoReturn:
    if listening and error.filename is None:
        if isinstance(error, socket.gaierror):
            fail(f"{listening}: {error.strerror}", "Give an address of this machine with --host.")
        if error.errno in _LISTENING:
            what, way_out = _LISTENING[error.errno]
            fail(f"{listening}: {what}", way_out)
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        _discard_output()  # otherwise Python tries to write the rest at exit
    reason = error.strerror or str(error)
    way_out = _SYSTEM.get(error.errno, "Check the path and the disk.")
    fail(f"{os.fsdecode(error.filename)}: {reason}" if error.filename is not None else reason, way_out)


def _discard_output() -> None:
    with contextlib.suppress(OSError, ValueError):  # not a file, in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(what: str, way_out: str = "", *, code: int = FAILED) -> NoReturn:
    stop = "" if what.endswith((".", "?")) else "."
    say(f"headwater: {what}{stop} {way_out}" if way_out else f"headwater: {what}", err=True)
    raise typer.Exit(code)


def described(error: errors.HeadwaterError) -> tuple[str, str]:
    """The message of an error, and advice."""
    if isinstance(error, errors.NetworkError):
        return _lost(error)
    if isinstance(error, errors.StreamNotFoundError) and error.url:
        return str(error), _find_of(urlsplit(error.url).path)
    if isinstance(error, errors.SubscriptionNotFoundError) and error.url:
        return str(error), "Correct the id (headwater subscription list), or create it: headwater subscription create."
    return str(error), error.advice


def _find_of(path: str) -> str:
    if name := unquote(path.partition(TABLE_ROOT)[2]):
        create = f"headwater table create {shlex.quote(name)}"
        return f"Correct the name (headwater table list), or create the table with: {create}"
    if name := unquote(path.partition(STREAM_ROOT)[2]):
        return f"Correct the path (headwater list), or create the stream with: headwater create {shlex.quote(name)}"
    return f"Correct the URL: streams are below {STREAM_ROOT}, tables below {TABLE_ROOT}"


def _lost(error: errors.NetworkError) -> tuple[str, str]:
    import ssl

    parts, cause = urlsplit(error.url), root_cause(error)
    server = f"{parts.scheme}://{parts.netloc}"
    if isinstance(cause, ConnectionRefusedError):
        return f"no server is running at {server}", _start_of(parts.hostname, parts.port)
    if isinstance(cause, socket.gaierror):
        return f"unknown host {parts.hostname!r} ({cause.strerror})", "Correct the URL, or check the network."
    if isinstance(cause, ssl.SSLCertVerificationError):
        way_out = "Use a host name of the certificate, or trust its authority: SSL_CERT_FILE=FILE"
        return f"the certificate of {server} is not valid: {cause.verify_message}", way_out
    if isinstance(cause, ssl.SSLError):
        reason = (cause.reason or str(cause)).replace("_", " ").lower()
        return f"TLS with {server} failed: {reason}", "If the server has no TLS, use http:// instead of https://."
    return str(error), "Check the URL and that the server runs." if error.nothing_done else error.advice


def _start_of(host: str | None, port: int | None) -> str:
    if host not in ("127.0.0.1", "localhost", "::1"):
        return "Correct the URL, or start one there with: headwater serve"
    return _STARTING if port == 4437 else f"{_STARTING} --port {port or 80}"


def root_cause(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def is_hopeless(error: errors.HeadwaterError) -> bool:
    """Whether a retry is pointless for a server that has never responded."""
    import ssl

    return isinstance(root_cause(error), (ConnectionRefusedError, socket.gaierror, ssl.SSLError))
