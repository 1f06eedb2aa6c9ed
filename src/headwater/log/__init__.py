"""The model of the log, pure: commands come in, events and replies come out.

    commands    what may be asked
    deciding    `decide(view, command)`: events and a reply, or an error
    quotas      how many streams, and how large: checked on what was decided
    events      what changed, and what is kept
    state       `evolve(state, event)`: the state after it

No input, output, clock or randomness. Positions are integers.
"""
