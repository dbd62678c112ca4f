"""The data plane on trio: one file per thing a batch meets."""
