"""Leased queues: work items that are ours for a while, each processed once though it is delivered several times."""
