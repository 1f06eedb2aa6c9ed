"""`headwater subscription create`: create a subscription."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.connecting import AsJson, Server, SubscriptionId, complete_path, connected
from headwater.cli.output import print_json, say
from headwater.errors import StreamNotFoundError

if TYPE_CHECKING:
    from headwater.client import Client


def command(
    server: Server,
    id: SubscriptionId,  # noqa: A002
    pattern: Annotated[
        str | None,
        typer.Option(help="Streams by their paths: * is one segment, ** any number.", show_default=False),
    ] = None,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            help="A stream by its path. Repeatable.", show_default=False, metavar="PATH", autocompletion=complete_path
        ),
    ] = None,
    wake_stream: Annotated[
        str | None,
        typer.Option(
            help="The stream that gets wake events, for workers.",
            show_default=False,
            metavar="PATH",
            autocompletion=complete_path,
        ),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="The URL that is called instead.", show_default=False, metavar="URL")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds that a worker may be silent. Default: 30.", show_default=False, metavar="SECONDS"),
    ] = None,
    description: Annotated[str | None, typer.Option(help="A note for people.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Create a subscription over streams. If it exists with the same configuration, nothing changes.

    Streams that exist are linked at their tail: what they have is not pending.
    """
    if (wake_stream is None) == (webhook is None):
        raise typer.BadParameter("give either --wake-stream or --webhook", param_hint="--wake-stream")
    if pattern is None and not stream:
        raise typer.BadParameter("give a pattern, or streams with --stream, or both", param_hint="--pattern")
    with connected(server) as client:
        subscription = client.subscription(id)
        made = subscription.create(
            pattern=pattern,
            streams=stream or (),
            webhook_url=webhook,
            wake_stream=wake_stream,
            lease_s=lease,
            description=description,
        )
        if wake_stream is not None:
            _check_wake_stream(client, wake_stream)
    if as_json:
        print_json({"url": subscription.url, "created": made})
    else:
        say(f"{'created' if made else 'exists'} {subscription.url}")


def _check_wake_stream(client: Client, path: str) -> None:
    """Say if the wake stream does not exist: the server does not create it."""
    try:
        client.stream(path).head()
    except StreamNotFoundError:
        create = f"headwater create {shlex.quote(path)}"
        say(f"headwater: the wake stream does not exist, so nothing wakes workers; create it with: {create}", err=True)
