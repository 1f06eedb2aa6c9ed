"""`headwater state`: the entities of a stream of state events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from headwater.cli.connecting import AsJson, Path, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.moments import parse_moment
from headwater.cli.output import meter, print_json, shown, write
from headwater.errors import EntityNotFoundError, ProtocolError
from headwater.positions import BEGINNING
from headwater.protocol.state.entities import Entities, Entity

if TYPE_CHECKING:
    from headwater.client import Stream, StreamEntity

_OFFSET = re.compile(r"-1|now|[0-9]+_[0-9]+")


def command(
    server: Server,
    path: Path,
    type: Annotated[str | None, typer.Argument(help="Only entities of this type.", show_default=False)] = None,  # noqa: A002
    key: Annotated[str | None, typer.Argument(help="The key of one entity.", show_default=False)] = None,
    at: str | None = typer.Option(
        None, help="The state at an offset, or before a time: 30s, 15m, 1h or 2d ago, or 2030-01-01T00:00:00Z."
    ),
    as_json: AsJson = False,
) -> None:
    """Print the entities of a stream of state events, or the value of one.

    Each entity is a line of type, key and value, with --json an object with the offset of the state. The server folds
    the events; if it is not Headwater, the command reads the stream and folds them itself.
    """
    place = None if at is None else _place(at)
    with connected(server, path) as client:
        stream = client.stream(path)
        try:
            _show(stream, type, key, place, as_json=as_json)
        except ProtocolError:
            if isinstance(place, datetime):
                raise  # only Headwater has times
            _show_folded(stream, type, key, place, as_json=as_json)


def _place(text: str) -> str | datetime:
    if _OFFSET.fullmatch(text):
        return text
    try:
        return parse_moment(text, datetime.now(UTC))
    except ValueError as error:
        fail(
            f"--at: an offset, or {str(error).removeprefix('expected ')}",
            "See: headwater state --help",
            code=WRONG_CALL,
        )


def _show(stream: Stream, type: str | None, key: str | None, at: str | datetime | None, *, as_json: bool) -> None:  # noqa: A002
    if type is None or key is None:
        _print(stream.entities(type, at=at), as_json=as_json)
    else:
        _print_one(stream.entity(type, key, at=at), as_json=as_json)


def _print(entities: Iterable[StreamEntity], *, as_json: bool) -> None:
    for entity in entities:
        if as_json:
            print_json(_record(entity))
        else:
            write(b"%b\t%b\t%b\n" % (shown(entity.type).encode(), shown(entity.key).encode(), _line(entity.text)))


def _print_one(entity: StreamEntity, *, as_json: bool) -> None:
    if as_json:
        print_json(_record(entity))
    else:
        write(_line(entity.text) + b"\n")


def _record(entity: StreamEntity) -> dict[str, object]:
    value = msgspec.Raw(_line(entity.text))
    return {"type": entity.type, "key": entity.key, "value": value, "offset": entity.offset}


def _line(text: bytes) -> bytes:
    return msgspec.json.format(text, indent=-1) if b"\n" in text else text


# Servers that do not fold


def _show_folded(stream: Stream, type: str | None, key: str | None, at: str | None, *, as_json: bool) -> None:  # noqa: A002
    state, offset = _fold(stream, at)
    if type is None or key is None:
        _print(_all(state, type, offset), as_json=as_json)
        return
    entity = state.get(type, key)
    if entity is None:
        raise EntityNotFoundError(f"there is no {type!r} with the key {key!r}")
    _print_one(_public(entity, offset), as_json=as_json)


def _fold(stream: Stream, at: str | None) -> tuple[Entities, str]:
    state, offset, size = Entities(), at or BEGINNING, 0
    if at == BEGINNING:
        return state, offset
    with meter("reading") as update:
        for batch in stream.read(type=bytes, until=None if at == "now" else at).batches():
            data = b"".join([message + b"," for message in batch.items])
            for _ in state.fold(data):
                """All of it."""
            offset = batch.offset
            size += len(data)
            update(size, None)
    return state, offset


def _all(state: Entities, type: str | None, offset: str) -> Iterator[StreamEntity]:  # noqa: A002
    page = state.page(type, b"", state.count, state.size_bytes)
    return (_public(entity, offset) for entity in page.entities)


def _public(entity: Entity, offset: str) -> StreamEntity:
    from headwater.client import StreamEntity

    return StreamEntity(entity.type, entity.key, bytes(entity.value), offset)
