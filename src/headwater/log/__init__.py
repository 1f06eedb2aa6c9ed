"""The model of the log: commands in, events and replies out.

    commands    commands and their replies
    deciding    `decide(states, command)` returns events and a reply, or raises an error
    quotas      limits on the number and size of streams, checked on the events of a decision
    events      changes of streams and documents, as they are stored
    state       `evolve(state, event)` returns the state after an event

This package does no I/O and uses no clock or randomness. Positions are integers.
"""
