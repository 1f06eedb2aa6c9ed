"""A real server in memory, for the tests of applications that use Headwater.

Unlike an app that is called through `httpx.ASGITransport`, it listens on a port, so that live reads, producers and
databases work as they do in production. `headwater.testing.fixtures` has it as pytest fixtures.
"""

from headwater.testing.serving import MemoryServer, memory_server

__all__ = ["MemoryServer", "memory_server"]
