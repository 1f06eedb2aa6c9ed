"""The Durable Streams wire on the server: from message to command, from reply to message."""
