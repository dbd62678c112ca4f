"""The dashboards: `fleet.py` (fleet and process), `pipeline.py` (pipeline and node) and `dead_letters.py`."""
