"""The HTTP edges: one route table, one set of handlers, a native HTTP/1.1 edge and an ASGI app."""
