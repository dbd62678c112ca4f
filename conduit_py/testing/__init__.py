"""What authors of connectors and pipelines test with."""
