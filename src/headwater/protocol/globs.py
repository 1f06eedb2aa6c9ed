"""Globs over the paths of streams and tables.

Clients choose the paths, so matching must not backtrack: it would take exponential time for some paths. A star matches
the shortest text that lets the literal text up to the next star match, in an atomic group, which never tries another
match. The shortest match is enough, because it leaves the most text for the stars after it. Only the last `*`, if it
must reach the end of the path, and the last `**` try all positions.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PARTS = re.compile(r"((?<![^/])\*\*/|\*\*|\*|\?|\[[^\]]+\])")
_LEAST = {"**": ".*?", "**/": "(?:.*?/)??", "*": "[^/]*?"}
_ANY = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*"}


@lru_cache
def glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob over paths. Raises ValueError if it is invalid.

    `*` and `?` match within a segment, `**` also across segments, `[abc]` one of these characters. A segment `**`
    before other segments also matches no segment: `**/a` matches `a`, and `x/**/a` matches `x/a`.
    """
    runs = [["", ""]]  # pairs of a star and the regular expression of the text up to the next one
    for part in _PARTS.split(pattern.strip("/")):
        if part in _ANY:
            runs.append([part, ""])
        else:
            runs[-1][1] += _characters(part)
    try:
        return re.compile(_joined(runs), re.DOTALL)
    except re.error as error:  # for example [z-a]
        raise ValueError(f"{pattern[:80]!r} is not a valid glob: {error.msg}") from None


def _joined(runs: list[list[str]]) -> str:
    last_deep = max((at for at, (star, _) in enumerate(runs) if star.startswith("**")), default=0)
    out, is_open = runs[0][1], False
    for at, (star, text) in enumerate(runs[1:], 1):
        if star == "*":
            out += f"{_ANY[star]}{text}" if at == len(runs) - 1 else f"(?>{_LEAST[star]}{text})"
            continue
        out += ")" if is_open else ""
        is_open = at != last_deep
        out += f"(?>{_LEAST[star]}{text}" if is_open else f"{_ANY[star]}{text}"
    return out


def _characters(part: str) -> str:
    """The regular expression of a part that is not a star: text, `?` or `[abc]`."""
    if part == "?":
        return "[^/]"
    if not (part.startswith("[") and part.endswith("]") and len(part) > 2):
        return re.escape(part)
    negated = part[1] in "!^"
    members = re.escape(part[2 if negated else 1 : -1]).replace(chr(92) + "-", "-")
    return f"[^/{members}]" if negated else f"(?!/)[{members}]"


def fixed_part(pattern: str) -> str:
    return re.split(r"[*?\[]", pattern.strip("/"), maxsplit=1)[0]
