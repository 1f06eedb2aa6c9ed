"""The Durable Streams wire: headers, offsets as text, server-sent events, entity tags, cursors, paths, queries."""
