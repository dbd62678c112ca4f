"""The dashboard of dead letters: what was refused, where, and what became of it."""

from conduit_py.telemetry import metrics
from conduit_py.telemetry.panels import (
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    Board,
    bars,
    lines,
    number,
    quantiles,
    rate,
    share_of_time,
)

_READ = rate(metrics.READ, OF_PIPELINE, by="pipeline_name")
_NACKED = rate(metrics.NACKED, OF_PIPELINE, by="pipeline_name")

DEAD_LETTERS = Board(
    "dead-letters",
    "dead letters",
    "Refused records and dead letters: where, how many, and what share of the traffic.",
    {
        "Now": (
            number(
                "Dead letters kept",
                f"sum({metrics.LETTERS.name}{{{OF_PIPELINE}}})",
                "short",
                "In the journal, kept or queued to be sent again.",
                bad=1,
            ),
            number(
                "Dead letters, last hour",
                f"sum(increase({metrics.DEAD_LETTERED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Taken by the handlers of the chosen pipelines.",
                bad=1,
            ),
            number(
                "Refused, last hour",
                f"sum(increase({metrics.NACKED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Records that some node refused.",
                bad=1,
            ),
            number(
                "Pipelines degraded",
                f'sum({metrics.PIPELINE_STATUS.name}{{{OF_PIPELINE}, status="degraded"}})',
                "none",
                "A refusal that the dead-letter policy does not allow degrades its pipeline.",
                bad=1,
            ),
        ),
        "Over time": (
            lines(
                "Dead letters",
                "cps",
                "Per second, taken by the handler.",
                (rate(metrics.DEAD_LETTERED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "In the journal",
                "short",
                "Kept until somebody acts, or queued to be sent again.",
                (
                    f"sum by (pipeline_name, state) ({metrics.LETTERS.name}{{{OF_PIPELINE}}})",
                    f"{BY_PIPELINE} {{{{state}}}}",
                ),
            ),
            lines(
                "Size of the journal",
                "bytes",
                "What the letters take on disk.",
                (f"sum by (pipeline_name) ({metrics.LETTERS_BYTES.name}{{{OF_PIPELINE}}})", BY_PIPELINE),
            ),
            lines(
                "Delivered by replay",
                "cps",
                "Letters per second that were sent again and taken.",
                (rate(metrics.REPLAYED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "Refused by node",
                "cps",
                "Records per second. A destination that refuses what another accepts shows here.",
                (rate(metrics.NACKED, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
            ),
            lines(
                "Share refused",
                "percentunit",
                "Of the records read.",
                (f"{_NACKED} / {_READ}", BY_PIPELINE),
            ),
            quantiles(
                "Calls of the handler",
                "For the letters of one commit.",
                metrics.DLQ_DURATION,
                OF_PIPELINE,
                "pipeline_name, plugin",
                f"{BY_PIPELINE} {{{{plugin}}}}",
            ),
            bars(
                "Where records are refused, last hour",
                f"topk(20, sum by (pipeline_name, node) (increase({metrics.NACKED.name}{{{OF_PIPELINE}}}[1h])))",
                BY_NODE,
                "short",
                "The 20 nodes that refused most.",
            ),
            lines(
                "Waiting for the handler",
                "percentunit",
                "The share of time that commits waited for the dead-letter handler.",
                (
                    share_of_time(metrics.WAITING, f'{OF_PIPELINE}, reason="dead letters"', by="pipeline_name"),
                    BY_PIPELINE,
                ),
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)
