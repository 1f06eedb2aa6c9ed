"""`headwater subscription show`: show a subscription."""

from __future__ import annotations

import msgspec

from headwater.cli.connecting import AsJson, Server, SubscriptionId, connected
from headwater.cli.output import print_json, print_table, say


def command(server: Server, id: SubscriptionId, as_json: AsJson = False) -> None:  # noqa: A002
    """Show a subscription: its configuration, its streams and the offset up to which each was processed."""
    with connected(server) as client:
        info = client.subscription(id).get()
    if as_json:
        print_json(info)
        return
    members = msgspec.structs.asdict(info)
    streams = members.pop("streams")
    webhook = members.pop("webhook")
    if webhook is not None:
        members["webhook"] = webhook.url
        members |= {} if webhook.signing is None else {"keys": webhook.signing.jwks_url, "key": webhook.signing.kid}
    rows = [{"name": name, "value": value} for name, value in members.items() if value is not None]
    print_table(rows, ["name", "value"], folding=["value"])
    say("")
    links = [msgspec.structs.asdict(link) for link in streams]
    print_table(links, ["path", "link_type", "acked_offset"], folding=["path"])
