"""Which jobs of a file feed others: a job that reads a table or stream comes after the jobs that write it."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from urllib.parse import urlsplit

from headwater.cli.connecting import root_of
from headwater.errors import OptionError
from headwater.pipeline.options import JobOptions
from headwater.protocol.globs import fixed_part, glob


def ends_by_itself(options: JobOptions) -> bool:
    return bool(getattr(options, "once", True))  # replay has no such option: it always ends


def order_of(jobs: Mapping[str, JobOptions]) -> dict[str, set[str]]:
    """The jobs in the order in which they start, and for each the jobs whose ends it waits for.

    A job that ends by itself waits for the ends of those that feed it, if they end. Others start in the same order,
    because a table must exist before it is read. OptionError if jobs that end wait for each other.
    """
    before = {name: _feeding(name, jobs) for name in jobs}
    ending = {name for name, options in jobs.items() if ends_by_itself(options)}
    waits = {name: {one for one in before[name] & ending if name in ending} for name in jobs}
    try:
        list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        circle = " → ".join(f"[jobs.{name}]" for name in error.args[1])
        message = f"{circle} feed each other, so none of them can run first with once"
        raise OptionError(f"{message}; remove one of them, or run them without once") from None
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        order = list(TopologicalSorter(waits).static_order())
    return {name: waits[name] for name in order}


def _feeding(name: str, jobs: Mapping[str, JobOptions]) -> set[str]:
    """The jobs whose results a job reads, except itself."""
    return {other for other, options in jobs.items() if other != name and _feeds(options, jobs[name])}


def _feeds(writer: JobOptions, reader: JobOptions) -> bool:
    from headwater.pipeline.locations import same_place

    tables = [place for what, place in writer.places().items() if what != "checkpoint"]
    if any(same_place(table, read) for table in tables for read in reader.inputs().values()):
        return True
    written, read = writer.written_streams(), reader.read_streams()
    if written is None or read is None or _server(writer.url) != _server(reader.url):
        return False
    return any(_overlap(written.strip("/"), one) for one in _patterns(read))


def _patterns(streams: str) -> list[str]:
    from headwater.pipeline.sources import is_pattern
    from headwater.spark.parsing import stream_names

    return [streams.strip("/")] if is_pattern(streams) else stream_names("streams", streams)


def _overlap(first: str, second: str) -> bool:
    """Whether two paths or globs have a path in common; of two globs, whether they may have."""
    parts = fixed_part(first), fixed_part(second)
    if parts[0] != first and parts[1] != second:
        return parts[0].startswith(parts[1]) or parts[1].startswith(parts[0])
    if parts[0] == first:
        return glob(second).fullmatch(first) is not None
    return glob(first).fullmatch(second) is not None


def _server(url: str) -> tuple[str | None, int | None, str]:
    """A server, however its URL is written."""
    parts = urlsplit(root_of(url))
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.hostname, port, parts.path.partition("/v1/stream")[0]
