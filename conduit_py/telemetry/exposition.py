"""The metrics as Prometheus reads them."""

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, REGISTRY, generate_latest

from conduit_py.lifecycle.fleet import Fleet
from conduit_py.telemetry.collector import collect

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""What to say that `metrics_text` is."""


def metrics_text(fleet: Fleet) -> bytes:
    """Everything known about the fleet and its process at this instant, in the text format of Prometheus.

    Call it in the event loop in which the fleet runs. What processors and connectors registered with
    prometheus_client on their own is part of it.
    """
    return collect(fleet).text().encode() + generate_latest(REGISTRY)
