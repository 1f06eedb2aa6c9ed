"""`headwater copy`: copy a store into another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from headwater.cli.output import meter, say
from headwater.errors import OptionError
from headwater.server.settings import POSTGRES_SCHEMES
from headwater.store.copying import CopyCounts, CopySource, CopyTarget, Source, compare, copy_store
from headwater.store.embedded.copies import open_directory_copy, open_directory_source


def command(
    source: str = typer.Argument(
        metavar="FROM", help="The data directory to copy, or a postgresql:// URL. No server may use it."
    ),
    target: str = typer.Argument(
        metavar="TO",
        help="The data directory to create, which must not exist or be empty, or the postgresql:// URL of an empty "
        "database.",
    ),
) -> None:
    """Copy all streams, tables and documents into another store, with their offsets and times.

    Run it again after an interruption: it continues. At the end everything is compared.
    """
    shown = [_shown(place) for place in (source, target)]
    if not (_is_database(source) or _is_database(target)) and Path(source).resolve() == Path(target).resolve():
        raise OptionError(f"{source} cannot be copied to itself")
    done = asyncio.run(_copy(source, target))
    say(
        f"copied {shown[0]} to {shown[1]} and compared them: {done.streams:,} streams, {done.size_bytes:,} bytes, "
        f"{done.documents:,} documents"
    )


def _is_database(place: str) -> bool:
    return "://" in place


def _shown(place: str) -> str:
    """A place as messages show it, without a password."""
    if not _is_database(place):
        return place
    scheme = place.partition("://")[0]
    if scheme not in POSTGRES_SCHEMES:
        raise OptionError(f"{scheme}:// is no store; give a directory or a postgresql:// URL")
    try:
        from headwater.store.postgres.connections import PostgresDatabase
    except ImportError as error:
        raise OptionError(f"a store in PostgreSQL needs: pip install 'headwater[postgres]' ({error})") from None
    return PostgresDatabase(place, "headwater copy").description


def _whole(directory: Path) -> str:
    return str(directory.resolve())


async def _open_source(place: str) -> CopySource:
    if not _is_database(place):
        directory = Path(place)
        return await open_directory_source(directory, _whole(directory))
    from headwater.store.postgres.copies import open_postgres_source

    return await open_postgres_source(place)


async def _open_target(place: str, what: Source) -> CopyTarget:
    if not _is_database(place):
        return open_directory_copy(Path(place), what)
    from headwater.store.postgres.copies import open_postgres_copy

    return await open_postgres_copy(place, what)


async def _copy(source: str, target: str) -> CopyCounts:
    original = await _open_source(source)
    try:
        copy = await _open_target(target, original.what)
        try:
            return await _make(original, copy)
        finally:
            await copy.close()
    finally:
        await original.close()


async def _make(source: CopySource, copy: CopyTarget) -> CopyCounts:
    with meter("copying") as update:
        await copy_store(source.store, source.what, copy, update)
    other = await copy.opened()
    try:
        with meter("comparing") as update:
            done = await compare(source.store, other, update)
    finally:
        await other.close()
    await source.check()
    await copy.complete()
    return done
