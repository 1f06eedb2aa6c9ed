"""Stores: bytes and durability. `contract.py` says what the engine asks of one."""
