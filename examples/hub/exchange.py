"""A provider and a hub exchange tables: each is a Headwater server, and they share nothing but HTTP.

The provider publishes its endpoints as a table (`manifest`) and introduces itself to the hub with a Notify POST. The
hub follows the manifest, because its policy allows it, and serves a table of all endpoints that it knows
(`directory`), which the provider follows in turn. Changes go both ways. The script starts both servers, plays both
organisations, prints what happens, and ends.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from headwater.client import Client, Put, Remove, Table

DEADLINE_S = 60.0  # for one step, on a slow machine


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def organisation(port: int, allowed: str) -> Iterator[Client]:
    """A server of its own that follows tables below one URL when a Notify names them, and a client of it."""
    url = f"http://127.0.0.1:{port}"
    options = ["--memory", "--port", str(port), "--allow-follow", allowed, "--log-level", "error"]
    command = [sys.executable, "-m", "headwater", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or not process.stdout.readline():  # the line that says it is ready
                raise RuntimeError("the server did not start")
            with Client(url) as client:
                yield client
        finally:
            process.terminate()


def derive(manifest: Table, directory: Table) -> None:
    """The hub's application: keep its directory equal to what the provider's manifest says.

    It compares both and appends what differs, so it can begin anew at any time.
    """
    for _ in manifest.follow().batches():
        wanted = {f"acme/{key}": row.record for key, row in manifest.active().items()}
        listed = {key: row.record for key, row in directory.active().items() if key.startswith("acme/")}
        changes: list[Put | Remove] = [Put(key, url) for key, url in wanted.items() if listed.get(key) != url]
        changes += [Remove(key) for key in listed if key not in wanted]
        for change in changes:
            what = f"lists {change.key} at {change.record}" if isinstance(change, Put) else f"drops {change.key}"
            say("hub", what)
        if changes:
            directory.append(changes)


def say(who: str, what: str) -> None:
    print(f"{who:9} {what}", flush=True)


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not happen: {what}")
        time.sleep(0.02)


def sees(copy: Table, expected: dict[str, str]) -> None:
    """Wait until the provider's copy of the directory says so."""

    def records() -> dict[str, str]:
        return {key: row.record for key, row in copy.active().items()}

    wait_for(f"the provider sees {expected}", lambda: records() == expected)
    say("provider", f"sees {', '.join(expected) or 'nothing'} in its copy of the directory")


def exchange(provider: Client, hub: Client) -> None:
    # What each of them serves. Mirrors are empty until the other one introduces itself.
    manifest, directory_copy = provider.table("manifest"), provider.table("directory")
    manifest.create(schema="endpoint_manifest", version=1)
    directory_copy.create(schema="directory", version=1, mirror=True)
    manifest.append([Put("fhir_read", "https://acme.example/fhir"), Put("direct_message", "https://acme.example/dm")])
    say("provider", f"serves {manifest.url}")
    manifest_copy, directory = hub.table("manifests/acme"), hub.table("directory")
    manifest_copy.create(schema="endpoint_manifest", version=1, mirror=True)
    directory.create(schema="directory", version=1)
    say("hub", f"serves {directory.url}")

    # A handshake: the provider wants to be told when the directory changes.
    provider.notify(directory.nurl, rows=directory_copy.nurl)
    say("provider", f"advertises its callback {directory_copy.nurl}")
    # The introduction: there is state at my SURL, and here is a callback for when your copy of it gets rows.
    provider.notify(manifest_copy.nurl, surl=manifest.url, rows=manifest.nurl)
    say("provider", f"introduces itself: surl={manifest.url}")
    # The hub wants to be told as well: its NURL wakes the follower that the introduction has started.
    hub.notify(manifest.nurl, rows=manifest_copy.nurl)
    say("hub", f"advertises its callback {manifest_copy.nurl}")
    deriving = threading.Thread(target=derive, args=(manifest_copy, directory), daemon=True)
    deriving.start()
    endpoints = {"acme/fhir_read": "https://acme.example/fhir", "acme/direct_message": "https://acme.example/dm"}
    sees(directory_copy, endpoints)

    say("provider", "moves fhir_read and withdraws direct_message")
    manifest.append([Put("fhir_read", "https://acme.example/fhir/v2"), Remove("direct_message")])
    sees(directory_copy, {"acme/fhir_read": "https://acme.example/fhir/v2"})

    say("hub", "lists an endpoint of another provider")
    directory.append([Put("other/fhir_read", "https://other.example/fhir")])
    sees(
        directory_copy,
        {"acme/fhir_read": "https://acme.example/fhir/v2", "other/fhir_read": "https://other.example/fhir"},
    )

    # The manifest ends: its mirror is closed with it, and the application with that.
    manifest.close()
    deriving.join(DEADLINE_S)
    wait_for("the hub's copy is closed", lambda: manifest_copy.info().closed)
    if manifest_copy.rows().all() != manifest.rows().all() or directory_copy.rows().all() != directory.rows().all():
        raise RuntimeError("a mirror differs from its source")
    say("both", "have the other's rows, with the same SeqNos and timestamps")


def main() -> None:
    provider_port, hub_port = free_port(), free_port()
    with (
        organisation(provider_port, f"http://127.0.0.1:{hub_port}/v1/table/directory") as provider,
        organisation(hub_port, f"http://127.0.0.1:{provider_port}/v1/table/manifest") as hub,
    ):
        exchange(provider, hub)


if __name__ == "__main__":
    main()
