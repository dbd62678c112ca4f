"""The dashboard of dead letters: what was refused, where, and what became of it."""

from conduit_py.telemetry import table
from conduit_py.telemetry.boards.parts import (
    BY_NODE,
    BY_PIPELINE,
    CHOOSE_PIPELINE,
    OF_PIPELINE,
    bars,
    lines,
    number,
    quantiles,
)
from conduit_py.telemetry.panels import Board
from conduit_py.telemetry.promql import rate, share_of_time

_READ = rate(table.READ, OF_PIPELINE, by="pipeline_name")
_NACKED = rate(table.NACKED, OF_PIPELINE, by="pipeline_name")

DEAD_LETTERS = Board(
    "dead-letters",
    "dead letters",
    "Refused records and dead letters: where, how many, and what share of the traffic.",
    {
        "Now": (
            number(
                "Dead letters kept",
                f"sum({table.LETTERS.name}{{{OF_PIPELINE}}})",
                "short",
                "In the journal, kept or queued to be sent again.",
                bad=1,
            ),
            number(
                "Dead letters, last hour",
                f"sum(increase({table.DEAD_LETTERED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Taken by the handlers of the chosen pipelines.",
                bad=1,
            ),
            number(
                "Refused, last hour",
                f"sum(increase({table.NACKED.name}{{{OF_PIPELINE}}}[1h]))",
                "short",
                "Records that some node refused.",
                bad=1,
            ),
            number(
                "Pipelines degraded",
                f'sum({table.PIPELINE_STATUS.name}{{{OF_PIPELINE}, status="degraded"}})',
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
                (rate(table.DEAD_LETTERED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "In the journal",
                "short",
                "Kept until somebody acts, or queued to be sent again.",
                (
                    f"sum by (pipeline_name, state) ({table.LETTERS.name}{{{OF_PIPELINE}}})",
                    f"{BY_PIPELINE} {{{{state}}}}",
                ),
            ),
            lines(
                "Size of the journal",
                "bytes",
                "What the letters take on disk.",
                (f"sum by (pipeline_name) ({table.LETTERS_BYTES.name}{{{OF_PIPELINE}}})", BY_PIPELINE),
            ),
            lines(
                "Delivered by replay",
                "cps",
                "Letters per second that were sent again and taken.",
                (rate(table.REPLAYED, OF_PIPELINE, by="pipeline_name"), BY_PIPELINE),
            ),
            lines(
                "Refused by node",
                "cps",
                "Records per second. A destination that refuses what another accepts shows here.",
                (rate(table.NACKED, OF_PIPELINE, by="pipeline_name, node"), BY_NODE),
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
                table.DLQ_DURATION,
                OF_PIPELINE,
                "pipeline_name, plugin",
                f"{BY_PIPELINE} {{{{plugin}}}}",
            ),
            bars(
                "Where records are refused, last hour",
                f"topk(20, sum by (pipeline_name, node) (increase({table.NACKED.name}{{{OF_PIPELINE}}}[1h])))",
                BY_NODE,
                "short",
                "The 20 nodes that refused most.",
            ),
            lines(
                "Waiting for the handler",
                "percentunit",
                "The share of time that commits waited for the dead-letter handler.",
                (
                    share_of_time(table.WAITING, f'{OF_PIPELINE}, reason="dead letters"', by="pipeline_name"),
                    BY_PIPELINE,
                ),
            ),
        ),
    },
    (CHOOSE_PIPELINE,),
)
