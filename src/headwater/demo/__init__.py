"""The system at work: a small shop whose state flows through a server, Spark, a Delta table and back to the server."""
