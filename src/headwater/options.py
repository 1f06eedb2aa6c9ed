"""Options declared once, as fields of a struct, for flags, environment variables and TOML files."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Meta

from headwater.errors import OptionError


def about(text: str, *, metavar: str = "", secret: bool = False) -> Meta:
    """The description of an option. The value of a secret option is never shown."""
    return Meta(description=text, extra={"metavar": metavar, "secret": secret})


class Option(msgspec.Struct, frozen=True):
    """A field of an options struct."""

    name: str
    type: Any  # with its bounds
    kind: type  # without bounds and None: the type of one value
    many: bool  # whether it takes a list of values
    is_table: bool  # whether it takes values by name
    default: Any
    help: str
    metavar: str
    secret: bool

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(struct: type[msgspec.Struct]) -> list[Option]:
    return [_option(field) for field in msgspec.structs.fields(struct)]


def _option(field: msgspec.structs.FieldInfo) -> Option:
    hint, *metas = get_args(field.type)
    meta = next(one for one in metas if one.description)
    extra = meta.extra or {}
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    metavar, secret = extra.get("metavar", ""), extra.get("secret", False)
    return Option(
        name=field.name,
        type=field.type,
        kind=_kind(hint),
        many=is_list(hint),
        is_table=is_table(hint),
        default=default,
        help=meta.description,
        metavar=metavar,
        secret=secret,
    )


def _kind(hint: Any) -> type:
    while get_args(hint):
        inner: Any = next(one for one in get_args(hint) if one is not type(None))
        hint = inner if isinstance(inner, type) or get_args(inner) else type(inner)  # the values of a Literal
    return hint  # type: ignore[no-any-return]


def is_list(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple) or any(get_origin(one) in (list, tuple) for one in get_args(hint))


def is_table(hint: Any) -> bool:
    return get_origin(hint) is dict


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. `-` in names of options is replaced by `_`."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    return underscored(found, str(path))


def underscored(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in given.items():
        if (option := name.replace("-", "_")) in named:
            raise OptionError(f"{where}: {option} is given twice, with - and with _")
        named[option] = value
    return named


def check_known(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise an error for an unknown option, and suggest the nearest name."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            instead = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise OptionError(f"{where}: there is no option {name}; {instead}")
