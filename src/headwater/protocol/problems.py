"""Problem documents (RFC 9457): how the server names an error and the client recognises it."""

from __future__ import annotations

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:headwater:"  # followed by the error's code
