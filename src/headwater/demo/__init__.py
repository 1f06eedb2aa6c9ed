"""The system at work: a small shop whose state flows through a server, Spark, a table and back into a stream."""
