"""All followers of a server: those of its policy, and those that Notify asks for."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from headwater.engine import Engine
from headwater.limits import FOLLOWERS_MAX, Limits
from headwater.outbound import OutboundClient, Target, open_outbound
from headwater.server.following.follower import Follower, FollowerStatus
from headwater.server.following.policy import FollowPolicy, parse_surl

log = logging.getLogger("headwater.following")


class Followers:
    """Made by `open_followers`. Without a client nothing is followed."""

    def __init__(self, engine: Engine, client: OutboundClient | None, policy: FollowPolicy) -> None:
        self._engine = engine
        self._client = client
        self._policy = policy
        self._tasks: dict[str, tuple[Follower, asyncio.Task[None]]] = {}  # by the name of the local table

    def start(self) -> None:
        """Follow what the policy names."""
        for name, surl in self._policy.follows.items():
            self._follow(name, surl)

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client = self._client
        self._client = None
        if client is not None:
            await client.aclose()

    def notified(self, table_name: str, surl: str) -> bool:
        """A Notify for a table named a SURL: wake its follower, or follow it if the policy allows; False: ignored."""
        if self._client is None:
            return False
        try:
            target = parse_surl(surl, development=self._policy.development)
        except ValueError as error:
            log.info("a Notify for table %r was ignored: %s", table_name, error)
            return False
        known = [follower for follower, _ in self._tasks.values() if follower.surl == target]
        for follower in known:
            follower.wake()
        if known:
            return True
        if table_name in self._tasks or len(self._tasks) >= FOLLOWERS_MAX or not self._policy.allows(target):
            log.info("a Notify for table %r was ignored: %s is not to be followed", table_name, target.shown)
            return False
        self._follow(table_name, target)
        return True

    def status(self) -> list[FollowerStatus]:
        return [follower.status() for _, (follower, _) in sorted(self._tasks.items())]

    def _follow(self, name: str, surl: Target) -> None:
        if self._client is None:
            raise RuntimeError("these followers have no client, or were stopped")
        follower = Follower(self._engine, self._client, name, surl)
        self._tasks[name] = follower, asyncio.create_task(follower.run())


def open_followers(engine: Engine, policy: FollowPolicy, limits: Limits) -> Followers:
    """Followers with a client of their own: each holds a connection open, however many are of one host."""
    if not policy.follows and not policy.allowed:
        return Followers(engine, None, policy)
    own = msgspec.structs.replace(
        limits, outbound_connections_max=FOLLOWERS_MAX, outbound_connections_per_host_max=FOLLOWERS_MAX
    )
    return Followers(engine, open_outbound(development=policy.development, limits=own), policy)
