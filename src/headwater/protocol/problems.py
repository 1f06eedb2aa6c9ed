"""Problem documents (RFC 9457): the `type` by which the client recognises an error."""

from __future__ import annotations

PROBLEM_MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:headwater:"  # followed by the error's code
