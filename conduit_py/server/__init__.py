"""The HTTP API of a fleet of pipelines."""
