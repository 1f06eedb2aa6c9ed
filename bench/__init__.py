"""Load drivers and the benches they make: our server beside its peers, in one run."""
