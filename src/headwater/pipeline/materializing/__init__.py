"""Keeps Delta tables of the current state of state streams, or of its history."""
