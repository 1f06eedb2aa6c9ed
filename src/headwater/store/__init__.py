"""Stores keep the data durably. `contract.py` defines their interface."""
