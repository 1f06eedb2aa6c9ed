"""Backups of a data directory to a directory or an S3 bucket: copies of the index, and the journal after each.

See "Backups" in DESIGN.md for the design, and `formats.py` for the files of a target.
"""
