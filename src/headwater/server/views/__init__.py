"""Views, which the server keeps current: tables over events of a stream, and streams of events over a table.

definition   the definition and position of a view: one durable document
view         one view: a live reader of its source that appends to its target
views        all of them: create, start, stop
requests     the headers that create a view
control      the list of views
"""

from headwater.server.views.views import Views

__all__ = ["Views"]
