"""Exactly-once: transactions over the data plane, and steps between journals."""
