"""Parses the options of a format, texts by name, into the struct that declares them."""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from headwater.errors import InvalidPathError, InvalidQueryError, OptionError
from headwater.options import Option, options_of
from headwater.protocol.streams.headers import parse_instant
from headwater.protocol.streams.paths import parse_path, quote_path

BATCH_READS = "batch reads"
QUERIES = "streaming queries"
_OF_SPARK = ("checkpointlocation", "queryname")  # Spark passes them to every sink of a query
_MS_MAX = 253_402_300_799_000  # the year 9999


class FormatOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of one format and direction. A field is an option with the same name in camel case."""

    format_name: ClassVar[str] = ""  # empty: a part of several formats
    meant: ClassVar[Mapping[str, str]] = {}  # names in other systems, in lower case, and what to use instead


S = TypeVar("S", bound=FormatOptions)


def parse_options(kind: type[S], texts: Mapping[str, str], *, bounded: bool | None = None) -> S:
    """Check and parse each option. Names are case-insensitive, and an empty text is an option that is not set.

    `bounded` tells a batch read from a streaming query. None: this is not known yet, or does not matter.
    """
    options = options_of(kind)
    by_name = set_options(texts)
    _check_names(kind, options, by_name)
    values: dict[str, Any] = {}
    for option in options:
        text = by_name.get(option.name.lower())
        if text is not None and option.only and bounded is (option.only == QUERIES):
            raise OptionError(f"{option.name} is for {option.only}; remove it")
        value = None if text is None else parse_value(option, text)
        if entries := _below(option.children, by_name):
            if isinstance(value, str):
                raise OptionError(f"set either {option.name} for all, or {option.children}.NAME for each")
            value = {**(value or {}), **entries}
        if value is not None:
            values[option.name] = value
        elif option.is_required:
            raise OptionError(f"the option {option.name} is missing")
    return msgspec.convert(values, kind)


def set_options(texts: Mapping[str, str]) -> dict[str, str]:
    """The options that are not empty, by their names in lower case."""
    return {name.lower(): text.strip() for name, text in texts.items() if text.strip()}


def _below(parent: str, by_name: Mapping[str, str]) -> dict[str, str]:
    """The options `PARENT.NAME`, by names that the user chose."""
    start = f"{parent.lower()}."
    return {name.removeprefix(start): text for name, text in by_name.items() if parent and name.startswith(start)}


def _check_names(kind: type[FormatOptions], options: list[Option], by_name: Mapping[str, str]) -> None:
    """Raise an error for every option without effect."""
    known = {option.name.lower(): option.name for option in options}
    parents = tuple(f"{option.children.lower()}." for option in options if option.children)
    unknown = sorted(name for name in by_name if name not in known and not name.startswith(parents))
    for name in unknown:  # a similar name is a typo
        for close in difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise OptionError(f"there is no option {name}; did you mean {known[close]}?")
    for name in (name for name in unknown if name not in _OF_SPARK):
        others = [other.format_name for other in _siblings(kind) if name.partition(".")[0] in _names_of(other)]
        instead = f"the options are {', '.join(known.values())}"
        if name in kind.meant or others:
            instead = (
                f"did you mean {kind.meant[name]}?" if not others else f"it is an option of the format {others[0]}"
            )
        raise OptionError(f"there is no option {name}; {instead}")


def _siblings(kind: type[FormatOptions]) -> list[type[FormatOptions]]:
    """The options of other formats in the same direction."""
    bases = [base for base in kind.__bases__ if issubclass(base, FormatOptions)]
    return [other for base in bases for other in base.__subclasses__() if other.format_name]


def _names_of(kind: type[FormatOptions]) -> set[str]:
    return {option.name.lower() for option in options_of(kind)}


def parse_value(option: Option, text: str) -> Any:
    """The value of one option."""
    if option.parse is not None:
        return option.parse(option.name, text)
    if choices := choices_of(option):
        by_lower = {choice.lower(): choice for choice in choices}
        if text.lower() not in by_lower:
            raise OptionError(f"{option.name} must be {' or '.join(choices)}, got {text!r}")
        chosen = by_lower[text.lower()]
        return chosen == "true" if option.kind is bool else chosen
    return _number(option, text) if option.kind in (int, float) else text


def choices_of(option: Option) -> tuple[str, ...]:
    """The texts that an option accepts, if they are few."""
    if option.kind is bool:
        return "true", "false"
    if issubclass(option.kind, enum.Enum):
        return tuple(member.value for member in option.kind)
    return next((get_args(hint) for hint in _hints(option.type) if get_origin(hint) is Literal), ())


def _number(option: Option, text: str) -> Any:
    try:
        number = msgspec.convert(text, option.type, strict=False)
    except msgspec.ValidationError:
        number = None
    if number is None or not math.isfinite(number):
        raise OptionError(f"{option.name} must be {_bounds(option)}, got {text!r}")
    return number


def _bounds(option: Option) -> str:
    metas = [one for hint in _hints(option.type) for one in getattr(hint, "__metadata__", ()) if isinstance(one, Meta)]
    ranges = [(meta.ge, meta.le) for meta in metas if meta.ge is not None]
    return "a number from {} to {}".format(*ranges[0]) if ranges else "a number above 0"


def _hints(hint: Any) -> list[Any]:
    """A type and the types in it."""
    return [hint, *(below for inner in get_args(hint) if not isinstance(inner, str) for below in _hints(inner))]


# Values of several options


def positions(*words: str) -> Callable[[str, str], str | dict[str, str]]:
    """A parser of positions: one of the words, or JSON with a position for each stream."""

    def parse(name: str, text: str) -> str | dict[str, str]:
        if text.lower() in words:
            return text.lower()
        expected = f'{name} must be {" or ".join(words)}, or JSON such as {{"orders": "latest"}}'
        return {path.strip("/"): position for path, position in by_name_in(text, str, expected).items()}

    return parse


def by_name_in(text: str, kind: Any, expected: str) -> dict[str, Any]:
    """A JSON object. `expected` is the error if the text is something else."""
    try:
        return msgspec.json.decode(text, type=dict[str, kind])
    except msgspec.MsgspecError:
        raise OptionError(f"{expected}, got {text[:200]}") from None


def parse_times(name: str, text: str) -> int | dict[str, int]:
    """A time for all streams, or JSON with a time for each, in milliseconds since 1970."""
    if not text.startswith("{"):
        return _parse_time(name, text)
    times = by_name_in(text, str | int, f'{name} must be a time, or JSON such as {{"orders": "2026-11-15T08:00:00Z"}}')
    return {path.strip("/"): _parse_time(name, str(time)) for path, time in times.items()}


def _parse_time(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        ms = int(text[: len(str(_MS_MAX)) + 1])
    else:
        try:
            ms = parse_instant(name, text, InvalidQueryError)
        except InvalidQueryError:
            ms = -1
    if not 0 <= ms <= _MS_MAX:
        raise OptionError(
            f"{name} must be a time such as 2026-11-15T08:00:00Z, or milliseconds since 1970, got {text[:80]!r}"
        )
    return ms


def names(name: str, text: str) -> list[str]:
    """A list: `a,b`, or JSON."""
    if not text.startswith("["):
        return [one.strip() for one in text.split(",")]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise OptionError(f'{name} must be a list, a,b or ["a","b"], got {text[:200]}') from None


def stream_names(name: str, text: str) -> list[str]:
    return [checked_path(path) for path in names(name, text)]


def stream_name(name: str, text: str) -> str:
    return checked_path(text)


def checked_path(path: str) -> str:
    """Check the path of a stream. URLs are not allowed, because a token is for one server."""
    path = path.strip("/")
    try:
        parse_path(quote_path(path))
    except InvalidPathError as error:
        raise OptionError(f"{path[:200]!r} is not a valid path of a stream: {error}") from None
    return path
