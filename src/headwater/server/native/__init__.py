"""The native edge: HTTP/1.1 on asyncio transports and httptools.

    edge        the listener, the timer, shutdown
    shared      what all connections of an edge share
    connection  one connection, built from the modules below
    states      the states of a connection, their transitions and deadlines
    parsing     parses requests, within the limits
    pipeline    requests that wait for their turn
    writing     writes responses, and handles clients that do not read them
    tls         TLS between a connection and its transport

Only `connection`, `tls` and `edge` use transports.
"""

from headwater.server.native.edge import NativeEdge

__all__ = ["NativeEdge"]
