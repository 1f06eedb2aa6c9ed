"""Bytes and durability: where records are kept. No HTTP words here."""
