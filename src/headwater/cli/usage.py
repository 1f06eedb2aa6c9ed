"""`headwater usage`: how many streams and bytes are below a prefix of paths."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from headwater.cli.connecting import AsJson, Server, complete_path, connected, is_below
from headwater.cli.output import print_json, print_list, say
from headwater.errors import ProtocolError
from headwater.log.json_framing import UNREADABLE, reason_of

COLUMNS = ["prefix", "token", "streams", "bytes", "live_readers", "quota"]


def command(
    server: Server,
    prefix: Annotated[
        str,
        typer.Argument(
            help="Count the streams and tables at and below this path. Without it: what has quotas.",
            autocompletion=complete_path,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show what is below a prefix of paths: streams and tables, and their bytes.

    With a prefix, the command lists what the token may read and counts it. Without one, the server reports the prefixes
    and tokens that have quotas, which needs the scope admin:**.
    """
    rows = [_counted(server, prefix.strip("/"))] if prefix.strip("/") else _reported(server)
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        print_list([{**row, "quota": format_limits(row.get("quota", {}))} for row in rows], COLUMNS)
    else:
        say("no prefix and no token has a quota; give a prefix to count what is below it", err=True)


def _counted(server: Server, prefix: str) -> dict[str, Any]:
    with connected(server) as client:
        sizes = [info.bytes or 0 for info in client.list(prefix) if is_below(info.path, prefix)]
        sizes += [info.bytes or 0 for info in client.tables(prefix) if is_below(info.name, prefix)]
    return {"prefix": prefix, "streams": len(sizes), "bytes": sum(sizes)}


def _reported(server: Server) -> list[dict[str, Any]]:
    import httpx

    from headwater.cli.top import fetch_report
    from headwater.client.transport import tls_context
    from headwater.limits import ANSWER_TIMEOUT_S

    with httpx.Client(headers=server.all_headers(), timeout=ANSWER_TIMEOUT_S, verify=tls_context()) as http:
        answer = fetch_report(http, f"{server.url.rstrip('/')}/__ds/usage", {})
    try:
        report = msgspec.json.decode(answer, type=dict[str, list[dict[str, Any]]])
        return report["prefixes"] + report.get("tokens", [])  # earlier servers have no quotas of tokens
    except (KeyError, *UNREADABLE) as error:
        raise ProtocolError(f"the server does not support headwater usage: {reason_of(error)}") from None


def format_limits(quota: dict[str, int]) -> str:
    """A quota as options write it."""
    return " ".join(f"{name}={number}" for name, number in quota.items())
