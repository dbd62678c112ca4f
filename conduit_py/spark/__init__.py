"""The second engine: the same pipeline, with its input read and its processors run by the executors of a Spark."""
