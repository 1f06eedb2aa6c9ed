"""Load drivers and benches, which compare our server with its peers in one run."""
