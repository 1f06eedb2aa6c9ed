"""`headwater bench`: measure any Durable Streams server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from headwater.cli.connecting import AsJson, Auth, Header, Token, is_given, server_named
from headwater.cli.output import print_json, print_table

if TYPE_CHECKING:
    from headwater.cli.load import Measured


def command(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            envvar="HEADWATER_URL",
            help="URL of the server, of the path where it is mounted, or of the root of its streams.",
        ),
    ],
    seconds: float = typer.Option(5.0, min=0.1, help="Duration of each write measurement in seconds."),
    connections: int = typer.Option(64, min=1, help="Number of connections that append at the same time."),
    size: int = typer.Option(100, min=12, help="Size of a message in bytes."),
    token: Token = None,
    auth: Auth = None,
    header: Header = None,
    as_json: AsJson = False,
) -> None:
    """Measure appends, a producer, catch-up and live delivery. It creates streams and deletes them afterwards."""
    from headwater.cli.load import LoadTest
    from headwater.client import AsyncClient
    from headwater.client.session import redacted

    results: list[Measured] = []
    server = server_named(url, token, auth, header, is_token_given=is_given(context, "token"))
    try:
        client = AsyncClient(server.url, headers=server.all_headers())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None

    async def run() -> None:
        async with client:
            prefix = f"headwater-bench-{time.time_ns():x}"
            await LoadTest(client, prefix, seconds=seconds, connections=connections, size=size).run(results.append)

    with Console(stderr=True).status("measuring"):
        asyncio.run(run())
    if as_json:
        print_json({"url": redacted(url), "connections": connections, "message_bytes": size, "results": results})
    else:
        print_table([_row(measured) for measured in results], ["what", "result", "p50", "p99"], folding=["what"])


def _row(measured: Measured) -> dict[str, str | None]:
    row = msgspec.structs.asdict(measured)
    return {
        "what": measured.what,
        "result": f"{measured.value:,.0f} {measured.unit}" if measured.unit != "ms" else f"{measured.value:.2f} ms",
        "p50": None if row["p50_ms"] is None else f"{measured.p50_ms:.2f} ms",
        "p99": None if row["p99_ms"] is None else f"{measured.p99_ms:.2f} ms",
    }
