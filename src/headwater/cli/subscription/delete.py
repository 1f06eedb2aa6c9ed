"""`headwater subscription delete`: delete a subscription."""

from __future__ import annotations

from headwater.cli.connecting import AsJson, Server, SubscriptionId, connected
from headwater.cli.output import print_json, say


def command(server: Server, id: SubscriptionId, as_json: AsJson = False) -> None:  # noqa: A002
    """Delete a subscription and its cursors. Its streams stay."""
    with connected(server) as client:
        subscription = client.subscription(id)
        subscription.get()  # the deletion of one that does not exist succeeds
        subscription.delete()
    if as_json:
        print_json({"url": subscription.url, "deleted": True})
    else:
        say(f"deleted {subscription.url}")
