"""Pipelines over time: status, recovery, stop."""
