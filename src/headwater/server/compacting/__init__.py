"""Compaction: the front of a state stream or a table is replaced by a snapshot of what it leads to.

`Compactor` (`compactor.py`) finds what is to be compacted, and `Compaction` (`compaction.py`) is one run. The snapshot
is computed in a separate process (`snapshot_worker.py`) from the pieces of the stream that the run sends there
(`contents.py`).
"""
