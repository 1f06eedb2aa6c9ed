"""The auth file of a server, and what it names, are read again when they change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headwater.outbound import open_outbound
from headwater.server.auth.opening import open_authority
from headwater.server.watching import FileWatcher
from tests import virtual_time

KEYS = '{"keys": [{"kty": "oct", "k": "' + "A" * 43 + '"}]}'


def test_a_file_of_keys_that_comes_after_the_file_that_names_it_is_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        file, keys = tmp_path / "auth.toml", tmp_path / "keys.json"
        file.write_text("anonymous = ['read:a']\n")
        watcher = FileWatcher(0.01)
        opened = open_authority(file, open_outbound(), watcher)
        opened.start()
        watcher.start()
        file.write_text("[[issuer]]\nissuer='x'\naudience='y'\njwks_file='keys.json'\n")
        await asyncio.sleep(0.1)
        assert opened.authority.rules.anonymous.scopes  # the old rules
        keys.write_text(KEYS)
        async with asyncio.timeout(5):
            while "x" not in opened.authority.rules.issuers:
                await asyncio.sleep(0.01)
        await watcher.stop()
        await opened.stop()

    virtual_time.run(main())
