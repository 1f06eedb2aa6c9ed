"""All followers of a server: those of its configuration, and those from Notify requests."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from headwater.engine import Engine
from headwater.errors import HeadwaterError, OverloadedError
from headwater.limits import FOLLOWERS_MAX, RETRY_AFTER_S, Limits
from headwater.outbound import CheckedUrl, OutboundClient, open_outbound
from headwater.protocol.tables.paths import nurl_path
from headwater.protocol.trace_context import TraceContext
from headwater.server.auth.authority import Authority
from headwater.server.following.documents import Admitted, admit, forget, load_admitted
from headwater.server.following.follower import Follower, FollowerStatus
from headwater.server.following.policy import FollowPolicy, parse_surl
from headwater.tasks import Tasks

log = logging.getLogger("headwater.following")


class Followers:
    """Made by `open_followers`. Without a client nothing is followed.

    `public_url` is the URL of this server for others; without it, followers do not register for Notify.
    """

    def __init__(
        self, engine: Engine, client: OutboundClient | None, policy: FollowPolicy, public_url: str | None = None
    ) -> None:
        self.public_url = public_url
        self._engine = engine
        self._client = client
        self._policy = policy
        self._running = False
        self._tasks: dict[str, tuple[Follower, asyncio.Task[None]]] = {}  # by the name of the local table
        self._ending = Tasks()  # of deleted mirrors
        self._admitting = asyncio.Lock()

    # Life

    async def start(self) -> None:
        """Follow the SURLs of the policy, and those admitted earlier that it still allows."""
        before = await load_admitted(self._engine)
        for name, surl in self._policy.follows.items():
            self._follow(name, surl)
        for admitted in before:
            target = self._allowed(admitted.name, admitted.surl)
            if target is not None and admitted.name not in self._tasks:
                self._follow(admitted.name, target)
        self._running = True

    async def stop(self) -> None:
        self._running = False
        for _, task in self._tasks.values():
            self._ending.keep(task)
        self._ending.cancel()
        await self._ending.ended()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # Notify

    def wake(self, name: str, surl: str, trace: TraceContext | None = None) -> bool:
        """Wake the follower of a table whose NURL was notified, and the followers of the SURL. False if there are none.

        The SURL need not be the one that the table follows: a server may be known under several addresses.
        """
        if not self._running:  # otherwise the sender would drop the NURL
            raise OverloadedError("followers are about to start or to stop", retry_after_s=RETRY_AFTER_S)
        try:
            target = parse_surl(surl, development=self._policy.development)
        except ValueError:
            target = None
        known = [follower for follower, _ in self._tasks.values() if follower.name == name or follower.surl == target]
        for follower in known:
            follower.wake(trace)
        return any(not follower.stopped for follower in known)

    async def admit(self, name: str, surl: str) -> bool:
        """Follow a SURL into a table from now on, durably, if the policy allows it."""
        async with self._admitting:
            if name in self._tasks:
                return not self._tasks[name][0].stopped
            target = self._allowed(name, surl)
            if target is None or not self._running:
                return False
            self._follow(name, target)
            try:
                await admit(self._engine, Admitted(name, str(target)))
            except HeadwaterError:
                self._end(name)
                raise
            if name not in self._tasks:  # its mirror was deleted meanwhile
                await forget(self._engine, name)
            return True

    def _allowed(self, name: str, surl: str) -> CheckedUrl | None:
        try:
            target = parse_surl(surl, development=self._policy.development)
        except ValueError as error:
            log.info("table %r follows nothing that Notify names: %s", name, error)
            return None
        if not self._policy.allows(target):
            log.info("table %r does not follow %s: the policy does not allow it", name, target.shown)
        elif len(self._tasks) >= FOLLOWERS_MAX:
            log.warning("table %r does not follow %s: there are %d followers", name, target.shown, FOLLOWERS_MAX)
        else:
            return target
        return None

    # Deletion

    async def forget(self, name: str) -> bool:
        """Stop following a SURL from a Notify that has no mirror yet. False if there is none."""
        if name not in self._tasks or name in self._policy.follows:
            return False
        await forget(self._engine, name)
        self.mirror_deleted(name)
        return True

    def mirror_deleted(self, name: str) -> None:
        """Handle the deletion of a mirror: SURLs of the policy are mirrored again from the beginning, others are
        dropped."""
        self._end(name)
        if name in self._policy.follows and self._running:
            self._follow(name, self._policy.follows[name])

    def _end(self, name: str) -> None:
        if name in self._tasks:
            _, task = self._tasks.pop(name)
            self._ending.keep(task).cancel()

    # Status

    def status(self) -> list[FollowerStatus]:
        return [follower.status() for _, (follower, _) in sorted(self._tasks.items())]

    def _follow(self, name: str, surl: CheckedUrl) -> None:
        if self._client is None:
            raise RuntimeError("these followers have no client, or were stopped")
        nurl = None if self.public_url is None else f"{self.public_url}{nurl_path(name)}"
        follower = Follower(self._engine, self._client, name, surl, nurl)
        self._tasks[name] = follower, asyncio.create_task(follower.run())


def open_followers(
    engine: Engine,
    policy: FollowPolicy,
    limits: Limits,
    public_url: str | None = None,
    authority: Authority | None = None,
) -> Followers:
    """Followers with their own client. Each holds a connection open and may need another one for its handshake, without
    a limit per host. `authority` has the tokens for remote servers."""
    if not policy.follows and not policy.allowed:
        return Followers(engine, None, policy, public_url)
    most = 2 * FOLLOWERS_MAX
    own = msgspec.structs.replace(limits, outbound_connections_max=most, outbound_connections_per_host_max=most)
    client = open_outbound(development=policy.development, limits=own)
    if authority is not None:
        client.token_for = authority.token_for
    return Followers(engine, client, policy, public_url)
