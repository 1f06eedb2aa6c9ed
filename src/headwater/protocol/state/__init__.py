"""The State Protocol: its terms, and conversion between state events and rows of tables. No I/O."""
