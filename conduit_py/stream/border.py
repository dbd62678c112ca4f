"""The border to code that is not ours: where a foreign exception becomes an error with a name."""

from collections.abc import Iterator
from contextlib import contextmanager

from conduit_py.batch import Batch
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


def lent(batch: Batch) -> Batch:
    """The batch with a list of its own: a plugin that reorders it or takes records out must not do so to ours."""
    return Batch(batch.span, list(batch.records), batch.sequences, batch.pieces)
