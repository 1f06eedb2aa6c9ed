"""The syntax of STP: rows, changes, the content type, queries, headers, paths, Notify forms, server-sent events."""
