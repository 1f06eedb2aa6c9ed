"""Budgets: limits on the bytes that all connections or requests of an edge hold together."""

from __future__ import annotations


class Budget:
    __slots__ = ("bytes_max", "exhausted", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.exhausted = False


class Share:
    """The share of one connection or request in a budget."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def hold(self, size_bytes: int) -> bool:
        """Set the size of the share. False if it grows and exceeds the budget."""
        grown_bytes = size_bytes - self.held_bytes
        self.held_bytes = size_bytes
        budget = self._budget
        budget.held_bytes += grown_bytes
        budget.exhausted = budget.held_bytes > budget.bytes_max
        return grown_bytes <= 0 or not budget.exhausted
