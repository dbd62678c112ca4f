"""The dashboards, one module each: fleet, pipeline and node, dead letters, and the runtime of the process."""
