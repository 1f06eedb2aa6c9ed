"""The handlers of the Durable Streams protocol."""
