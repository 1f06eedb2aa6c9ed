"""Tables in Spark: any SURL as a source, and a sink into the tables of a Headwater server."""
