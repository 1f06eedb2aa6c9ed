"""Options declared once, as fields of a struct, for flags, environment variables and TOML files."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from headwater.errors import OptionError

S = TypeVar("S", bound=msgspec.Struct)


def about(
    text: str,
    *,
    metavar: str = "",
    secret: bool = False,
    only: str = "",
    children: str = "",
    parse: Callable[[str, str], Any] | None = None,
) -> Meta:
    """The description of an option. The value of a secret option is never shown.

    `only` is the use that an option is for, if it is not for every use. `children` is the parent name of options
    `PARENT.NAME`, each of which is an entry of this one. `parse` makes a value of a name and a text.
    """
    extra = {"metavar": metavar, "secret": secret, "only": only, "children": children, "parse": parse}
    return Meta(description=text, extra=extra)


class Option(msgspec.Struct, frozen=True):
    """A field of an options struct that a user sets, by its encoded name."""

    name: str
    type: Any  # with its bounds
    kind: type  # without bounds and None: the type of one value
    many: bool  # whether it takes a list of values
    is_table: bool  # whether it takes values by name
    default: Any
    help: str
    metavar: str
    secret: bool
    only: str
    children: str
    parse: Callable[[str, str], Any] | None

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def options_of(struct: type[msgspec.Struct]) -> list[Option]:
    """The options of a struct. A field without a description is not one: no user sets it by its name."""
    fields = ((field, _description(field.type)) for field in msgspec.structs.fields(struct))
    return [_option(field, meta) for field, meta in fields if meta is not None]


def _description(hint: Any) -> Meta | None:
    return next((one for one in getattr(hint, "__metadata__", ()) if one.description), None)


def _option(field: msgspec.structs.FieldInfo, meta: Meta) -> Option:
    hint = get_args(field.type)[0]
    return Option(
        name=field.encode_name,
        type=field.type,
        kind=_kind(hint),
        many=is_list(hint),
        is_table=is_table(hint),
        default=field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
        help=meta.description or "",
        **(meta.extra or {}),
    )


def _kind(hint: Any) -> type:
    while get_args(hint):
        inner: Any = next(one for one in get_args(hint) if one is not type(None))
        hint = inner if isinstance(inner, type) or get_args(inner) else type(inner)  # the values of a Literal
    return hint  # type: ignore[no-any-return]


def is_list(hint: Any) -> bool:
    return any(get_origin(one) in (list, tuple, frozenset, Sequence) for one in (hint, *get_args(hint)))


def is_table(hint: Any) -> bool:
    return any(get_origin(one) in (dict, Mapping) for one in (hint, *get_args(hint)))


def check_values(options: S) -> S:
    """Check the texts and numbers of a struct that was not made from a file, and return it."""
    for field in msgspec.structs.fields(options):
        value = getattr(options, field.name)
        try:
            if isinstance(value, str | int | float):
                msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise OptionError(f"{field.name}: {error}, got {value!r}") from None
    return options


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. `-` in names of options is replaced by `_`."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{path} is not TOML: {error}") from None
    return underscored(table, str(path))


def underscored(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in options.items():
        if (option := name.replace("-", "_")) in named:
            raise OptionError(f"{where}: {option} is given twice, with - and with _")
        named[option] = value
    return named


def check_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise an error for an unknown option, and suggest the nearest name."""
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            instead = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise OptionError(f"{where}: there is no option {name}; {instead}")
