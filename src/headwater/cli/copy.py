"""`headwater copy`: copy a store into another one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import typer

from headwater.cli.output import meter, say
from headwater.errors import OptionError
from headwater.limits import Limits
from headwater.log.moments import NEVER
from headwater.store.contract import Store
from headwater.store.copying import CopyCounts, compare, copy_store, describe
from headwater.store.embedded import layout
from headwater.store.embedded.copies import open_directory_copy
from headwater.store.embedded.opening import open_store

log = logging.getLogger("headwater.store")


def command(
    source: str = typer.Argument(metavar="FROM", help="The data directory to copy. No server may use it."),
    target: str = typer.Argument(metavar="TO", help="The data directory to create; it must not exist or be empty."),
) -> None:
    """Copy all streams, tables and documents into another store, with their offsets and times.

    Run it again after an interruption: it continues. At the end everything is compared.
    """
    for place in (source, target):
        if "://" in place:
            raise OptionError(f"{place} is no directory")
    if Path(source).resolve() == Path(target).resolve():
        raise OptionError(f"{source} cannot be copied to itself")
    done = asyncio.run(_copy(Path(source), Path(target), str(Path(source).resolve())))
    say(
        f"copied {source} to {target} and compared them: {done.streams:,} streams, {done.size_bytes:,} bytes, "
        f"{done.documents:,} documents"
    )


async def _start(store: Store) -> None:
    def failed(error: BaseException) -> None:
        log.error("%s", error)

    await store.start(failed, lambda: NEVER)


async def _copy(source: Path, target: Path, name: str) -> CopyCounts:
    layout.check_format(source)
    limits = Limits()
    store = open_store(source, limits)
    try:
        await _start(store)
        what = describe(store, name)
        copy = open_directory_copy(target, what)
        try:
            with meter("copying") as update:
                await copy_store(store, what, copy, update)
            other = copy.opened(limits)
        except BaseException:
            copy.close()
            raise
        try:
            await _start(other)
            with meter("comparing") as update:
                done = await compare(store, other, update)
        finally:
            await other.close()
        copy.complete()
        return done
    finally:
        await store.close()
