"""The process of its own in which a server runs a pipeline on Spark."""
