"""The native edge: HTTP/1.1 on asyncio transports and httptools.

    edge        the listener, the timer, stopping
    shared      what all connections of an edge share
    connection  one connection: ties the modules below together
    states      what a connection is doing: the table of transitions and deadlines
    parsing     bytes to requests, within the limits
    pipeline    requests that wait for their turn
    writing     responses to bytes, and clients that do not read them
    budgets     bytes that all connections may hold together
    tls         encrypted bytes between a connection and its transport

Only `connection`, `tls` and `edge` act on transports.
"""

from headwater.server.native.edge import NativeEdge

__all__ = ["NativeEdge"]
