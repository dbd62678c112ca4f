"""conduit-py as a contender, in each style of writing processors, with default settings and everything on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import trio
from conduit_connectors import file

import conduit_py
from benchmarks.styles import STYLES, Counting, Generated, Style, parse
from benchmarks.work import Contender, Count, count_lines
from conduit_py import Destination, Pipeline, Rows, Source, Status, processor
from conduit_py.lifecycle.supervisor import Supervisor
from conduit_py.store.sqlite.store import SqliteStore

Delivery = Literal["at_least_once", "exactly_once"]


def by_style(contender: Callable[[Style], Contender], suffix: str = "") -> dict[str, Contender]:
    """A contender for each style, under its name in the tables."""
    return {f"conduit-py, {name}{suffix}": contender(style) for name, style in STYLES.items()}


def generated_into_counters(
    style: Style,
    processors: Sequence[Any] | None = None,
    destinations: int = 1,
    *,
    in_memory: bool = False,
    **options: Any,
) -> Contender:
    """W1 and its relatives, with positions durable in SQLite. The options are further ones of the source."""

    def run(records: int, folder: Path) -> Count:
        counters: list[list[int]] = [[] for _ in range(destinations)]
        source = style.source(records=records, **options)
        chosen = style.from_text if processors is None else processors
        run_to_end(_counting_pipeline("w1", source, chosen, counters), None if in_memory else folder)
        return lambda: _count_each(counters)

    return run


def many_pipelines(style: Style, pipelines: int) -> Contender:
    """The records of W1 shared between pipelines that run at once in one process with one state, as `serve` has it."""

    def run(records: int, folder: Path) -> Count:
        counters: list[list[int]] = [[] for _ in range(pipelines)]
        shares = [records // pipelines + (number < records % pipelines) for number in range(pipelines)]
        trio.run(_run_together, folder, style, shares, counters)
        return lambda: sum(map(sum, counters))

    return run


def file_to_file(
    processors: Sequence[Any], delivery: Delivery = "at_least_once", *, in_memory: bool = False
) -> Contender:
    """W2 and its relatives: every line synced before it is acked, positions durable in SQLite."""

    def run(records: int, folder: Path) -> Count:
        pipeline = Pipeline(
            "w2",
            sources=[Source("in", file.Source(path=folder / "in.jsonl", format="json"))],
            processors=list(processors),
            destinations=[Destination("out", file.Destination(path=folder / "out.jsonl", format="json"))],
            delivery=delivery,
        )
        run_to_end(pipeline, None if in_memory else folder)
        return count_lines(folder / "out.jsonl")

    return run


def arrow_w1(records: int, folder: Path) -> Count:
    """W1 with an Arrow processor in place of two of the three."""
    # Imported here: the memory of the others is measured too.
    import pyarrow as pa
    import pyarrow.compute as pc

    @processor(arrow=pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
    def columns(table: pa.Table) -> Rows:
        whole = pc.cast(pc.round(pc.multiply(table["amount"], 100)), pa.int64())
        tens = pc.multiply(pc.divide(table["id"], 10), 10)
        return Rows(table.append_column("cents", whole), keep=pc.not_equal(table["id"], tens))

    return generated_into_counters(STYLES["records"], [parse, columns])(records, folder)


def run_to_end(pipeline: Pipeline, folder: Path | None) -> None:
    """Run with the state in this folder; None: in memory."""
    outcome = conduit_py.run(pipeline, state=None if folder is None else folder / "state")
    assert outcome.status is Status.COMPLETED, outcome


async def _run_together(folder: Path, style: Style, shares: list[int], counters: list[list[int]]) -> None:
    async with await SqliteStore.open(folder / "state") as store, trio.open_nursery() as nursery:
        for number, (share, counter) in enumerate(zip(shares, counters, strict=True)):
            pipeline = _counting_pipeline(f"p{number}", style.source(records=share), style.from_text, [counter])
            nursery.start_soon(Supervisor(pipeline, store).run)


def _counting_pipeline(id: str, source: Generated, processors: Sequence[Any], counters: list[list[int]]) -> Pipeline:
    return Pipeline(
        id,
        sources=[Source("generated", source)],
        processors=list(processors),
        destinations=[Destination(f"count-{i}", Counting(counter=counter)) for i, counter in enumerate(counters)],
    )


def _count_each(counters: list[list[int]]) -> int:
    totals = {sum(counter) for counter in counters}
    assert len(totals) == 1, f"the destinations got different numbers of records: {totals}"
    return totals.pop()
