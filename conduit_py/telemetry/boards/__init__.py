"""The dashboards: `fleet.py` (fleet, process and dead letters) and `pipeline.py` (pipeline and node)."""
