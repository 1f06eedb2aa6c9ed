"""The options of a view, which a stream or a table can be."""

from __future__ import annotations

import typer


def check_view(view_of: str | None, entity_type: str | None) -> None:
    if (view_of is None) != (entity_type is None):
        raise typer.BadParameter("a view needs both --view-of and --type")
