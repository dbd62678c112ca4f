"""From a pipeline to a checked graph, its plan and its drawing."""
