"""The STP wire: rows, changes, the content type, queries, headers, paths, Notify forms, server-sent events."""
