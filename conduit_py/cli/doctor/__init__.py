"""The command `doctor`: what on this machine keeps pipelines from running, and what to do about it."""
