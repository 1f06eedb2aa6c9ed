"""Views, which the server keeps current: tables over events of a stream, and streams of events over a table.

definition   what a view is, and how far it is: one durable document
view         one view: a live reader of its source that appends to its target
views        all of them: create, start, stop
requests     the headers that create a view
control      what an operator asks about them
"""

from headwater.server.views.views import Views

__all__ = ["Views"]
