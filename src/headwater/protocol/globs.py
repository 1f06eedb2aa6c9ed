"""Globs over the paths of streams and tables."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache
def glob(pattern: str) -> re.Pattern[str]:
    """A pattern over paths: `*` and `?` stay within a segment, `**` does not, `[abc]` is one of them.

    ValueError if it is none.
    """
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]+\])", pattern.strip("/"))
    kinds = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    out = []
    for part in parts:
        if part in kinds:
            out.append(kinds[part])
        elif part.startswith("[") and part.endswith("]") and len(part) > 2:
            negated = part[1] in "!^"
            out.append(
                f"[{'^/' if negated else ''}{re.escape(part[2 if negated else 1 : -1]).replace(chr(92) + '-', '-')}]"
            )
        else:
            out.append(re.escape(part))
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:  # as of [z-a]
        raise ValueError(f"{pattern[:80]!r} is no glob: {error.msg}") from None


def fixed_part(pattern: str) -> str:
    return re.split(r"[*?\[]", pattern.strip("/"), maxsplit=1)[0]
