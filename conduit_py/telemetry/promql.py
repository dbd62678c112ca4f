"""The few shapes that our queries to Prometheus have."""

from conduit_py.telemetry.metric import Metric

RATE_INTERVAL = "$__rate_interval"
"""What Grafana replaces by a span that has enough scrapes in it."""


def rate(metric: Metric, where: str = "", *, by: str, over: str = RATE_INTERVAL, part: str = "") -> str:
    """Per second, summed; `part` is "count" or "sum" of a histogram."""
    name = f"{metric.name}_{part}" if part else metric.name
    return f"sum by ({by}) (rate({name}{_in_braces(where)}[{over}]))"


def quantile(q: float, metric: Metric, where: str = "", *, by: str, over: str = RATE_INTERVAL) -> str:
    """The value that the share `q` of those observed did not exceed, as well as the buckets tell."""
    # `le` must survive the sum, or there are no buckets left to interpolate in.
    return f"histogram_quantile({q}, {rate(metric, where, by=f'{by}, le', over=over, part='bucket')})"


def mean(metric: Metric, where: str = "", *, by: str) -> str:
    """Of the values observed."""
    return f"{rate(metric, where, by=by, part='sum')} / {rate(metric, where, by=by, part='count')}"


def now(metric: Metric, where: str = "", *, by: str, how: str = "sum") -> str:
    """A gauge as it is, joined by `how`."""
    return f"{how} by ({by}) ({metric.name}{_in_braces(where)})"


def share_of_time(metric: Metric, where: str = "", *, by: str) -> str:
    """For a gauge that is 0 or 1: how much of the time it was 1."""
    return f"sum by ({by}) (avg_over_time({metric.name}{_in_braces(where)}[{RATE_INTERVAL}]))"


def _in_braces(where: str) -> str:
    return f"{{{where}}}" if where else ""
