"""`headwater table notify`: the NURLs of a table."""

from __future__ import annotations

import msgspec
import typer

from headwater.cli.connecting import AsJson, Name, Server, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.output import print_json, print_table, say

COLUMNS = ["event", "url", "since"]


def command(
    server: Server,
    name: Name,
    add: str | None = typer.Option(None, metavar="NURL", help="A URL to notify when the table gets rows."),
    event: str | None = typer.Option(None, help="The event type of --add. Default: rows.", show_default=False),
    remove: str | None = typer.Option(None, metavar="NURL", help="A URL that is no longer notified."),
    as_json: AsJson = False,
) -> None:
    """List the NURLs of a table, the URLs that are notified when it gets rows, or add or remove one.

    With --json, each line is a NURL as a JSON object.
    """
    if add is not None and remove is not None:
        fail("--add and --remove exclude each other", "Give one of them.", code=WRONG_CALL)
    if event is not None and add is None:
        fail("a NURL is removed under all its event types", "Leave --event out: it is for --add.", code=WRONG_CALL)
    with connected(server, name) as client:
        table = client.table(name)
        if add is not None:
            table.advertise(add, event=event or "rows")
        elif remove is not None:
            table.withdraw(remove)
        nurls = table.nurls() if add is None and remove is None else []
    if add is not None or remove is not None:
        _report(table.url, add or remove or "", added=add is not None, as_json=as_json)
    elif as_json:
        for nurl in nurls:
            print_json(nurl)
    else:
        print_table([msgspec.structs.asdict(nurl) for nurl in nurls], COLUMNS, folding=["event", "url"])


def _report(table_url: str, nurl: str, *, added: bool, as_json: bool) -> None:
    if as_json:
        print_json({"url": table_url, "nurl": nurl, "added": added})
    else:
        say(f"{'added' if added else 'removed'} {nurl}")
