"""From an error to a line on standard error and an exit code that scripts can rely on."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import sys
from collections.abc import Iterator
from typing import NoReturn

import typer

from headwater import errors
from headwater.store.embedded.journal import CorruptJournalError, DirectoryError

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
    (errors.StreamGoneError, NOT_FOUND),
    (errors.OffsetGoneError, NOT_FOUND),
    (errors.ConflictError, CONFLICT),
    (errors.StaleEpochError, CONFLICT),
    (errors.UnauthorizedError, REFUSED),
    (errors.ForbiddenError, REFUSED),
    (errors.TargetRefusedError, REFUSED),
    (errors.TooManyRequestsError, UNAVAILABLE),
    (errors.ServerError, UNAVAILABLE),
    (errors.NetworkError, UNAVAILABLE),
)


@contextlib.contextmanager
def failures(listening: str = "") -> Iterator[None]:
    """Report errors of servers, data directories, files and sockets in a line each, without a traceback."""
    try:
        yield
    except errors.HeadwaterError as error:
        fail(f"{error}\n{error.advice}", next((code for kind, code in _CODES if isinstance(error, kind)), FAILED))
    except CorruptJournalError as error:
        fail(f"{error}\nNothing was changed. See `headwater check --help` for how to look and how to salvage.")
    except (DirectoryError, sqlite3.DatabaseError) as error:
        fail(str(error))
    except BrokenPipeError:
        # The reader of our output closed it, as `head` does: not an error. Python would report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) and error.filename is None:
            fail(f"{listening}: {error.strerror}")
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        fail(str(error), WRONG_CALL)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def fail(message: str, code: int = FAILED) -> NoReturn:
    typer.echo(f"headwater: {message}", err=True)
    raise typer.Exit(code)
