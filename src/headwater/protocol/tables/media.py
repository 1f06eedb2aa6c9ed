"""The syntax of media types and media ranges with parameters (RFC 9110), as in Content-Type and Accept."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TYPE = re.compile(rf"\s*({_TOKEN}/{_TOKEN})\s*")
_PARAMETER = re.compile(rf";\s*(?:({_TOKEN})=({_TOKEN}|{_QUOTED}))?\s*")
# An unclosed quote extends to the end of the text. Searching its end at every quote would take quadratic time.
_ELEMENT = re.compile(r'(?:"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^,"])+')
_WHOLE_TOKEN = re.compile(_TOKEN)
_QUOTED_PAIR = re.compile(r"\\(.)")


class Media(msgspec.Struct, frozen=True):
    """A media type or range in lower case, with its parameters: names in lower case, values without quotes."""

    type: str
    parameters: dict[str, str]


def parse_media(text: str) -> Media | None:
    """Parse a media type; None if it is invalid or has a parameter twice."""
    found = _TYPE.match(text)
    if found is None:
        return None
    parameters: dict[str, str] = {}
    position = found.end()
    while position < len(text):
        parameter = _PARAMETER.match(text, position)
        if parameter is None:
            return None
        position = parameter.end()
        if parameter[1] is None:  # an empty parameter
            continue
        name = parameter[1].lower()
        if name in parameters:
            return None
        parameters[name] = _unquoted(parameter[2])
    return Media(found[1].lower(), parameters)


def _unquoted(value: str) -> str:
    return _QUOTED_PAIR.sub(r"\1", value[1:-1]) if value.startswith('"') else value


def quoted(value: str) -> str:
    """Format the value of a parameter: in quotes unless it is a token."""
    if _WHOLE_TOKEN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_ranges(accept: str) -> Iterator[Media]:
    """The valid media ranges of an Accept header."""
    for element in _ELEMENT.findall(accept):
        media = parse_media(element)
        if media is not None:
            yield media
