"""Globs over the paths of streams and tables.

Whoever names a path must not be able to make a match take long, so a pattern never looks for a second way to match
what it has matched. A star takes as little as lets the text up to the next star match, and that is kept (an atomic
group): where that text ends first, the stars behind it have most to choose from. Only the last `*`, if the path has to
end behind it, and the last `**` try all places.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PARTS = re.compile(r"((?<![^/])\*\*/|\*\*|\*|\?|\[[^\]]+\])")
_LEAST = {"**": ".*?", "**/": "(?:.*?/)??", "*": "[^/]*?"}
_ANY = {"**": ".*", "**/": "(?:.*/)?", "*": "[^/]*"}


@lru_cache
def glob(pattern: str) -> re.Pattern[str]:
    """A pattern over paths: `*` and `?` stay within a segment, `**` does not, `[abc]` is one of them. A segment `**`
    with something behind it may be none, so that `**/a` and `x/**/a` match `a` and `x/a`.

    ValueError if it is none.
    """
    runs = [["", ""]]  # a star, and what matches the text up to the next one
    for part in _PARTS.split(pattern.strip("/")):
        if part in _ANY:
            runs.append([part, ""])
        else:
            runs[-1][1] += _characters(part)
    try:
        return re.compile(_joined(runs), re.DOTALL)
    except re.error as error:  # as of [z-a]
        raise ValueError(f"{pattern[:80]!r} is no glob: {error.msg}") from None


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
    """What is no star: text, `?` or `[abc]`."""
    if part == "?":
        return "[^/]"
    if not (part.startswith("[") and part.endswith("]") and len(part) > 2):
        return re.escape(part)
    negated = part[1] in "!^"
    members = re.escape(part[2 if negated else 1 : -1]).replace(chr(92) + "-", "-")
    return f"[^/{members}]" if negated else f"(?!/)[{members}]"


def fixed_part(pattern: str) -> str:
    return re.split(r"[*?\[]", pattern.strip("/"), maxsplit=1)[0]
