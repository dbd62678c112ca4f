"""What holds for tests of every folder: the servers they may ask for, and how examples are drawn."""

import gc
import os
import signal
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from conduit_py.redaction import SECRETS

pytest_plugins = [
    "conduit_py.testing.services",
    "broker_servers",
    "kafka_topics",
    "queue_servers",
    "queue_harness",
    "s3_server",
    "prometheus_server",
]
"""Each server starts when the first test does that needs it."""

EXAMPLES = int(os.environ.get("CONDUIT_EXAMPLES", "100"))
"""How many examples a property has that does not say so itself: `make fuzz` has many."""

# A busy machine makes an example slow, not wrong.
settings.register_profile(
    "conduit_py", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES
)
settings.load_profile("conduit_py")

# A process that is started in the background ignores Ctrl-C, and so do all the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Thousands of tests are collected, all to stay. The garbage collector would look through them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Take what the collection made out of what the garbage collector looks through from now on."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def forget_secrets() -> Iterator[None]:
    """Forget the secrets that a test adds: a process keeps them, and would mask them in the texts of other tests."""
    values, forms, matcher = set(SECRETS._values), set(SECRETS._forms), SECRETS._matcher
    yield
    SECRETS._values, SECRETS._forms, SECRETS._matcher = values, forms, matcher
