"""Backups of a data directory: copies of the index, and the journal from there on, in a directory or an S3 bucket.

See "Backups" in DESIGN.md for how it works, and `formats.py` for what a target holds.
"""
