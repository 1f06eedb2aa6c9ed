"""Creates the flags of a command from the fields of an options struct."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.options import Option

_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def flag(option: Option, *, repeatable: bool = False, name: str = "", note: str = "") -> inspect.Parameter:
    """Make a flag. Its default is None, which means not given. Lists are `a,b`, unless `repeatable`; values by name
    are one flag for each."""
    named = name or option.flag
    text = option.help
    kind: Any = str if option.many else option.kind
    if isinstance(option.default, str | int | float | Path) and not isinstance(option.default, bool):
        text += (
            f" Default: {option.default:g}." if isinstance(option.default, float) else f" Default: {option.default}."
        )
    if (repeatable and option.many) or option.is_table:
        kind, text = list[str], f"{text} Repeatable."
    typer_option = typer.Option(named, help=f"{text}{note}", show_default=False, metavar=option.metavar or None)
    return inspect.Parameter(option.name, _KEYWORD, default=None, annotation=Annotated[kind | None, typer_option])


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=annotation)


def with_flags(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Set the parameters of a command."""
    command.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command
