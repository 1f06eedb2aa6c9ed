"""The settings of a server, as those who may see them get them: each with its value, its source and its meaning, and
without passwords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from headwater import __version__
from headwater.limits import Limits

HIDDEN = "…"  # in place of what is not shown


class ShownSetting(msgspec.Struct, frozen=True):
    """An option or a limit. `value` is null if it is not set, and `source` says where it comes from."""

    name: str
    value: bool | int | float | str | list[str] | None
    source: str
    about: str


class ShownSettings(msgspec.Struct, frozen=True):
    options: list[ShownSetting] = []
    limits: list[ShownSetting] = []
    version: str = __version__


def shown_limits(limits: Limits, source_of: Callable[[str], str]) -> list[ShownSetting]:
    """The limits, with the source of each by its name."""
    shown = []
    for field in msgspec.structs.fields(Limits):
        (about,) = field.type.__metadata__
        shown.append(ShownSetting(field.name, getattr(limits, field.name), source_of(field.name), about.description))
    return shown


def shown_value(value: Any, *, secret: bool = False) -> bool | int | float | str | list[str] | None:
    """The value of an option for display. URLs in it lose their user, password and query."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if secret and value:
        return HIDDEN
    if isinstance(value, Mapping):
        return [f"{name}={without_credentials(str(one))}" for name, one in value.items()]
    if isinstance(value, str | Path):
        return without_credentials(str(value))
    return [without_credentials(str(one)) for one in value]


def without_credentials(text: str) -> str:
    """Text for display: without user, password and query of a URL in it."""
    if "://" not in text:
        return text
    name, equals, url = text.partition("=") if "=" in text.partition("://")[0] else ("", "", text)
    parts = urlsplit(url)
    query = HIDDEN if parts.query else ""
    return name + equals + urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))
