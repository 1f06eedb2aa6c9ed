"""Common parts of responses about tables: headers, the type of a table, and errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Coroutine, Iterator
from functools import lru_cache
from typing import Any

from headwater.engine.messages import VisibleStream
from headwater.errors import HeadwaterError, StreamGoneError, StreamNotFoundError, UnknownOutcomeError
from headwater.log.content import ContentKind
from headwater.protocol.tables import headers
from headwater.protocol.tables.content_type import TableType, parse_table_type
from headwater.protocol.tables.paths import NOTIFY, name_of, nurl_reference
from headwater.server.http import Respond, Response
from headwater.server.problems import problem

VARY = ("vary", "accept, accept-encoding")  # a client that does not accept the schema gets 406

log = logging.getLogger("headwater.server")

# Stored content types were normalized by the server, so they are few and short.
type_of = lru_cache(maxsize=1024)(parse_table_type)


def table_type(table: VisibleStream) -> TableType:
    return type_of(table.content_type)


def last_seqno(seqno: int) -> tuple[str, str]:
    return headers.LAST_SEQNO, str(seqno)


def first_seqno(seqno: int) -> tuple[str, str]:
    return headers.FIRST_SEQNO, str(seqno)


def described(table: VisibleStream, seqno: int | None = None) -> list[tuple[str, str]]:
    """The headers that describe a table, or its rows up to a SeqNo.

    A table of NURLs has no NURL.
    """
    response_headers = [last_seqno(table.last_seqno if seqno is None else seqno), first_seqno(table.first_seqno)]
    if table.kind is ContentKind.MIRROR:
        response_headers.append((headers.MIRROR, "true"))
    if not table.may_have_gaps:
        response_headers.append((headers.GAPLESS, "true"))
    if not table.path.endswith(f"/{NOTIFY}"):
        response_headers.append((headers.NOTIFY, nurl_reference(name_of(table.path))))
    return response_headers


def table_error(path: str, error: HeadwaterError) -> HeadwaterError:
    """The same error, worded for tables."""
    if isinstance(error, StreamNotFoundError):
        return StreamNotFoundError(f"table {name_of(path)!r} does not exist; create it with PUT")
    if isinstance(error, StreamGoneError):
        return StreamGoneError(f"table {name_of(path)!r} was deleted")
    return error


def table_problem(path: str, error: HeadwaterError) -> Response:
    return problem(table_error(path, error))


async def answer(path: str, respond: Respond, work: Coroutine[Any, Any, Response | None]) -> None:
    """Run `work` and respond with its result or its error. If it returns None, it has responded itself."""
    try:
        response = await work
    except HeadwaterError as error:
        response = table_problem(path, error)
    except Exception:
        log.exception("a request for table %r failed", name_of(path))
        response = problem(UnknownOutcomeError("the server log has the cause"))
    if response is not None:
        respond(response)


@contextlib.contextmanager
def speaking_of(path: str) -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        raise table_error(path, error) from error
