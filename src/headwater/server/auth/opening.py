"""The authority of a server: rules from the auth file, which is read again when it changes, and the keys of issuers."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
from pathlib import Path

from headwater.outbound import OutboundClient
from headwater.server.auth.authority import Authority
from headwater.server.auth.fetching import KeyKeeper
from headwater.server.auth.rules import Rules, load_rules
from headwater.server.watching import FileWatcher

log = logging.getLogger("headwater.auth")


class OpenAuthority:
    """Made by `open_authority`. Call `start` on the event loop, before the first request."""

    def __init__(self, authority: Authority, keeper: KeyKeeper) -> None:
        self.authority = authority
        self.token_changed: Callable[[str, str], None] = lambda *_: None  # gets `grant` or `revoke` and a name
        self.keeper = keeper

    def start(self) -> None:
        self.keeper.keep(self.authority.rules.urls, self.authority.forget)

    def use(self, rules: Rules) -> None:
        before = self.authority.rules.tokens
        for action, tokens, others in (("revoke", before, rules.tokens), ("grant", rules.tokens, before)):
            for digest in tokens.keys() - others.keys():
                self.token_changed(action, tokens[digest].name)
        limited_storage = self.authority.quotas.limits_storage
        self.authority.use(rules)
        self.start()
        if self.authority.quotas.limits_storage and not limited_storage:
            log.warning("a quota of streams or bytes of a token needs a restart, unless one was there at the start")

    async def stop(self) -> None:
        await self.keeper.stop()


def open_authority(path: Path, client: OutboundClient, watcher: FileWatcher) -> OpenAuthority:
    """Read the auth file; ValueError if it is invalid. After the start, an invalid file is ignored."""
    keeper = KeyKeeper(client)

    files = [path]

    def load() -> Rules:
        _check_mode(path)
        named: list[Path] = []
        try:
            rules = load_rules(path, keeper.keys_of, named)
        except ValueError:
            files.extend(file for file in named if file not in files)  # watched as well: a correction is noticed
            raise
        files[:] = named
        return rules

    load()  # to find the files that it names
    opened: list[OpenAuthority] = []
    rules = watcher.add("the auth file", files, load, lambda new_rules: opened[0].use(new_rules))
    opened.append(OpenAuthority(Authority(rules), keeper))
    return opened[0]


def _check_mode(path: Path) -> None:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("%s can be read by other users, and may contain secrets; fix it with: chmod 600", path)
