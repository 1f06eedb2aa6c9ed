"""Columns of Arrow: how messages and rows become record batches, for the client, Spark and SQL.

The modules here need pyarrow and numpy. The client imports them only if columns are asked for.
"""
