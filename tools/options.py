"""The tables of options, limits and errors in the documentation: `python -m tools.options`, or with `--check` only
compared."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from headwater.errors import HeadwaterError
from headwater.limits import Limits
from headwater.options import Option
from headwater.server.settings import OPTIONS, variable

DOCS = Path(__file__).resolve().parent.parent / "docs"


def options_table() -> str:
    rows = ["| flag | environment | default | what |", "|---|---|---|---|"]
    rows += [_row(option) for option in OPTIONS.values()]
    return "\n".join(rows)


def _row(option: Option) -> str:
    if option.name == "limits":
        return f"| `--limit NAME=VALUE` | `HEADWATER_LIMIT_NAME` | see [limits](#limits) | {option.help} Repeatable. |"
    flag = f"`{option.flag} {option.metavar or option.name.upper()}`"
    if option.kind is bool:
        flag = f"`{option.flag}`, `--no-{option.flag[2:]}`"
    default = "" if option.default in (None, (), False) else f"`{option.default}`"
    what = f"{option.help} Repeatable." if option.many else option.help
    return f"| {flag} | `{variable(option.name)}` | {default} | {what} |"


def limits_table() -> str:
    rows = ["| name | default | what |", "|---|---|---|"]
    for field in msgspec.structs.fields(Limits):
        (about,) = field.type.__metadata__
        rows.append(f"| `{field.name}` | {_number(field.name, field.default)} | {about.description} |")
    return "\n".join(rows)


def _number(name: str, value: float) -> str:
    if "bytes" in name:
        for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,}"


def errors_table() -> str:
    """Every error that has advice of its own or a status, in the order of the statuses, those of clients last."""
    rows = ["| error | status | sent again | what | what to do |", "|---|---|---|---|---|"]
    kinds = sorted(_kinds(HeadwaterError), key=lambda kind: kind.status or 1000)
    rows += [
        f"| `{kind('').code}` | {kind.status or ''} | {'yes' * kind.retryable} | {kind.title} | {kind.advice} |"
        for kind in kinds
    ]
    return "\n".join(rows)


def _kinds(parent: type[HeadwaterError]) -> list[type[HeadwaterError]]:
    return [kind for child in parent.__subclasses__() for kind in (child, *_kinds(child))]


PAGES = {
    "operations.md": {"options": options_table, "limits": limits_table},
    "failures.md": {"errors": errors_table},
}


def written(name: str) -> str:
    """A page with its tables as the code has them, each between two comments that name it."""
    page = (DOCS / name).read_text()
    for table_name, table in PAGES[name].items():
        marked = re.compile(rf"(<!-- {table_name}: made by .*? -->\n).*?(\n<!-- /{table_name} -->)", re.DOTALL)
        if len(marked.findall(page)) != 1:
            raise ValueError(f"{name} has no place for the table of {table_name}")
        begin, end = next((found.end(1), found.start(2)) for found in marked.finditer(page))
        page = f"{page[:begin]}\n{table()}\n{page[end:]}"
    return page


def main() -> int:
    for name in PAGES:
        if "--check" not in sys.argv:
            (DOCS / name).write_text(written(name))
        elif written(name) != (DOCS / name).read_text():
            sys.stderr.write(f"{name} is not what the code says: run python -m tools.options\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
