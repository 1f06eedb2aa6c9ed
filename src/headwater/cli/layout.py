"""Formats rows as a table in the width of the terminal, or as a list of fields if the terminal is too narrow."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.cells import cell_len, chop_cells

_GAP = "  "
_PIECE = re.compile("[^ /]*[ /]|[^ /]+")  # text up to the next space or slash


def table_lines(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    folding: Mapping[int, int] = {},
    right: Collection[int] = (),
) -> Iterator[tuple[str, bool]]:
    """The lines of a table, each with a flag for headings.

    Columns that can be wrapped, given with their minimum widths, become narrower until the table fits. If it cannot
    fit, the fields of every row are listed.
    """
    widths = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    if width is not None and not _narrow(widths, width, folding):
        yield from itertools.chain.from_iterable(_fields(titles, row, width) for row in rows)
        return
    for line in _line(titles, widths, right):
        yield line, True
    for row in rows:
        for line in _line(row, widths, right):
            yield line, False


def _narrow(widths: list[int], width: int, folding: Mapping[int, int]) -> bool:
    """Make the widest wrapped column narrower, one cell at a time. False if that is not enough."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        left = [column for column, least in folding.items() if widths[column] > least]
        if not left:
            return False
        widths[max(left, key=lambda column: widths[column])] -= 1
        excess -= 1
    return True


def _line(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> Iterator[str]:
    """A row, with as many lines as its longest cell needs."""
    cells = [_folded(text, width) for text, width in zip(row, widths, strict=True)]
    for parts in itertools.zip_longest(*cells, fillvalue=""):
        padded = []
        for column, (part, width) in enumerate(zip(parts, widths, strict=True)):
            space = " " * (width - cell_len(part))
            padded.append(space + part if column in right else part + space)
        yield _GAP.join(padded).rstrip()


def _fields(titles: Sequence[str], row: Sequence[str], width: int) -> Iterator[tuple[str, bool]]:
    """The first field as a heading, the others below it with their titles."""
    for part in _folded(row[0], width):
        yield part, True
    indent = len(_GAP) + max(map(len, titles[1:]), default=0) + len(_GAP)
    for title, text in zip(titles[1:], row[1:], strict=True):
        for number, part in enumerate(_folded(text, max(width - indent, 1))):
            yield f"{'' if number else _GAP + title:{indent}}{part}", False


def _folded(text: str, width: int) -> list[str]:
    """Wrap text to a width, at spaces and slashes if possible."""
    if cell_len(text) <= width:
        return [text]
    lines, line = [], ""
    for piece in _PIECE.findall(text):
        if cell_len((line + piece).rstrip(" ")) <= width:
            line += piece
            continue
        if line:
            lines.append(line.rstrip(" "))
        *whole, line = chop_cells(piece, width)
        lines += whole
    return [*lines, line.rstrip(" ")]
