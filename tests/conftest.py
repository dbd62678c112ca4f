"""What holds for tests of every folder: the servers they may ask for, and how examples are drawn."""

import signal
import threading

from hypothesis import HealthCheck, settings

pytest_plugins = ["postgres_server", "queue_servers", "queue_harness", "s3_server"]
"""Each server starts when the first test does that needs it."""

# A busy machine makes an example slow, not wrong.
settings.register_profile("conduit_py", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("conduit_py")

# Whoever is started in the background has Ctrl-C ignored, and so have all the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
