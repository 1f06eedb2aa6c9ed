"""The State Protocol's vocabulary, and its events as rows of tables and the other way round. Pure."""
