"""The model of the log, pure: states, commands, events, and the functions that decide and evolve."""
