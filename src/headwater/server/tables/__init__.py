"""The handlers of STP tables."""
