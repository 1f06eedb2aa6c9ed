"""The embedded store: one process, one directory. See DESIGN.md."""
