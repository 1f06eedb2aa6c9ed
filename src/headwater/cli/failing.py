"""From an error to a line on standard error and an exit code: 1 for what went wrong, 2 for a wrong call."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

import typer

from headwater.store.journal import CorruptJournalError, UnknownFormatError


@contextlib.contextmanager
def failures(listening: str = "") -> Iterator[None]:
    """Report errors of data directories and sockets as one line each, without a traceback."""
    try:
        yield
    except CorruptJournalError as error:
        _leave(f"{error}\nNothing was changed. See `headwater check --help` for how to look and how to salvage.")
    except (UnknownFormatError, sqlite3.DatabaseError) as error:
        _leave(str(error))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES) and error.filename is None:
            _leave(f"{listening}: {error.strerror}")
        _leave(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _leave(message: str) -> None:
    typer.echo(f"headwater: {message}", err=True)
    raise typer.Exit(1)
