"""The syntax of Durable Streams: headers, offsets as text, server-sent events, entity tags, cursors, paths, queries."""
