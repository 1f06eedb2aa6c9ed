"""Print the Delta tables, without Spark."""

from __future__ import annotations

from deltalake import DeltaTable


def show(title: str, table: str, *columns: str) -> None:
    rows = DeltaTable(table).to_pyarrow_table(columns=list(columns)).to_pylist()
    print(title)
    for row in sorted([str(value) for value in row.values()] for row in rows):
        print("   ", " ".join(f"{value:8}" for value in row).rstrip())


show("current", "lake/customers", "key", "city")
show("history, from version to version", "lake/customers_history", "key", "valid_from", "valid_to", "city")
show("could not be applied", "lake/customers.quarantine", "key", "reason")
