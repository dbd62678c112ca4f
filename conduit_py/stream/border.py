"""The border to code that is not ours: where a foreign exception becomes an error with a name."""

from collections.abc import Iterator
from contextlib import contextmanager

from conduit_py.errors import NodeFailed, RunError


@contextmanager
def border(node: str, doing: str) -> Iterator[None]:
    """Translate what a plugin raises: errors it classified keep their class, all others become NodeFailed."""
    try:
        yield
    except RunError as error:
        error.node = error.node or node
        raise
    except Exception as error:
        raise NodeFailed(node, doing, error) from error
