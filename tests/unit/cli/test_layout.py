from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headwater.cli.layout import table_lines

TITLES = ["path", "bytes", "content type"]
ROWS = [["orders", "1,234", "application/json"], ["prices/europe/west/amsterdam", "0", "text/plain"]]


def lines(width: int | None) -> list[str]:
    return [line for line, _ in table_lines(TITLES, ROWS, width=width, folding={0: 12, 2: 12}, right={1})]


def test_without_a_width_every_row_is_one_line() -> None:
    assert lines(None) == [
        "path                          bytes  content type",
        "orders                        1,234  application/json",
        "prices/europe/west/amsterdam      0  text/plain",
    ]
    assert lines(53) == lines(None)


def test_columns_fold_at_slashes() -> None:
    assert lines(40) == [
        "path             bytes  content type",
        "orders           1,234  application/json",
        "prices/europe/       0  text/plain",
        "west/amsterdam",
    ]


def test_fields_are_listed_where_a_table_does_not_fit() -> None:
    assert lines(30) == [
        "orders",
        "  bytes         1,234",
        "  content type  application/",
        "                json",
        "prices/europe/west/amsterdam",
        "  bytes         0",
        "  content type  text/plain",
    ]


@given(
    st.lists(st.tuples(st.text("ab/ \u4ef7", max_size=60), st.text("0123,", max_size=12), st.text("x; ", max_size=40))),
    st.integers(30, 100),
)
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(rows: list[tuple[str, str, str]], width: int) -> None:
    got = [line for line, _ in table_lines(TITLES, rows, width=width, folding={0: 12, 2: 12}, right={1})]
    assert all(cell_len(line) <= width for line in got)
    for cells in rows:
        for cell in cells:
            assert {*cell} <= {" ", *"".join(got)}


@given(st.text("ab/ \u4ef7", max_size=60), st.integers(2, 30))
def test_folding_keeps_everything_but_spaces_at_line_ends(text: str, width: int) -> None:
    got = [line for line, _ in table_lines(["a"], [[text]], width=width, folding={0: 2})][1:]
    assert "".join(got).replace(" ", "") == text.replace(" ", "")
