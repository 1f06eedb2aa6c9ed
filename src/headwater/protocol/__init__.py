"""The Durable Streams protocol as pure functions: no input, output, clock or randomness."""
