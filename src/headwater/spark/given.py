"""The options that a user gave, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from headwater.errors import OptionError

T = TypeVar("T", int, float)

_OF_SPARK = ("checkpointLocation", "queryName")  # Spark passes them to every sink of a query
_OF_STATE = (  # options of the format stream-state only
    "badevents",
    "deadletterstream",
    "deletevalues",
    "nonfinitenumbers",
    "types",
    "valueschema",
)


class GivenOptions:
    """Options by name, case-insensitive."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        by_lower = {name.lower(): name for name in known}
        whole = {name for name in self._given if name.partition(".")[0] not in (*by_lower, "header")}
        for name in whole - by_lower.keys():  # others may be Spark's own; a similar name is a typo
            for close in difflib.get_close_matches(name, by_lower, n=1, cutoff=0.8):
                raise OptionError(f"there is no option {name}; did you mean {by_lower[close]}?")

    def refuse_unknown(self, known: tuple[str, ...], meant: Mapping[str, str], *parents: str) -> None:
        """Raise an error for every option without effect. `meant` maps names of other formats to ours. A parent option
        has children `parent.NAME` with names of the user; `header` always is a parent."""
        below = {f"{parent}.{name}".lower() for parent in (*parents, "header") for name in self.below(parent)}
        for name in sorted(self._given.keys() - {known.lower() for known in (*known, *_OF_SPARK)} - below):
            instead = f"did you mean {meant[name]}?" if name in meant else f"the options are {', '.join(known)}"
            if name.partition(".")[0] in _OF_STATE:
                instead = "it is an option of the format stream-state"
            raise OptionError(f"there is no option {name}; {instead}")

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value.strip() or None if value is not None else None

    def below(self, name: str) -> dict[str, str]:
        """The options `name.NAME`, with NAME chosen by the user."""
        start = f"{name.lower()}."
        return {key.removeprefix(start): value for key, value in self._given.items() if key.startswith(start)}

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"the option {name} is missing")
        return value

    def number(self, name: str, kind: type[T], default: Any) -> Any:
        value = self.text(name)
        if value is None:
            return default
        try:
            number = kind(value)
        except ValueError:
            number = kind(0)
        if not 0 < number < float("inf"):
            raise OptionError(f"{name} must be a number above 0, got {value!r}")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is not None and value.lower() not in map(str.lower, choices):
            raise OptionError(f"{name} must be {' or '.join(choices)}, got {value!r}")
        return value.lower() if value is not None else None
