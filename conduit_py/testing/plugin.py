"""The pytest plugin: fixtures for testing pipelines and connectors."""
