"""The demo: a small shop whose events go through a server, Spark and a Delta table, and back to the server."""
