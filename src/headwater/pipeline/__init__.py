"""The jobs of a data pipeline over streams: archive, materialize, publish and snapshot."""
