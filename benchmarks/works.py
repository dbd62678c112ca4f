"""All works by name, and the groups that `make bench` takes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import journal, loops, peers
from benchmarks.columns import W5
from benchmarks.conduit_yaml import COUNTED_G, G
from benchmarks.pipelines import (
    arrow_w1,
    by_style,
    file_to_file,
    generated_into_counters,
    many_pipelines,
)
from benchmarks.styles import STYLES, Style, all_in_one, parse_dicts, set_and_drop_dicts
from benchmarks.work import CONTROL, LOOP, Contender, Count, Work, where_installed
from benchmarks.workload import sized, write_input


def write_lines(records: int, folder: Path) -> None:
    write_input(folder / "in.jsonl", records)


def beside(loop: Contender, *others: dict[str, Contender]) -> dict[str, Contender]:
    """The loop, the same again as control, and the others."""
    return {LOOP: loop, CONTROL: loop} | {name: each for some in others for name, each in some.items()}


def _into_counters(*, in_memory: bool = False) -> dict[str, Contender]:
    counted = partial(generated_into_counters, in_memory=in_memory)
    return by_style(counted) | {
        "conduit-py, batch of records": counted(STYLES["records"], [all_in_one]),
        "conduit-py, batch of dicts": counted(STYLES["dict"], [parse_dicts]),
    }


def _between_files(*, in_memory: bool = False) -> dict[str, Contender]:
    written = partial(file_to_file, in_memory=in_memory)
    return by_style(lambda style: written(style.from_fields)) | {
        "conduit-py, batch of records": written([all_in_one]),
        "conduit-py, batch of dicts": written([set_and_drop_dicts]),
    }


def _bytewax(contender: Callable[..., Count]) -> dict[str, tuple[str, Contender]]:
    """Both ways to write it: one function for a batch, and a step for each thing that is done to a record."""
    by_record = partial(contender, steps=peers.by_record)
    return {"bytewax, by batch": ("bytewax", contender), "bytewax, by record": ("bytewax", by_record)}


_FILE_LOOPS: dict[str, Contender] = {"typed loop": loops.typed_loop_w2, "loop by blocks": loops.block_loop_w2}

_WORKS = {
    "W1": Work(
        "generated JSON of 200 bytes, parse, set a field, drop one in ten, count",
        beside(
            loops.plain_loop(),
            {"typed loop": loops.typed_loop_w1},
            _into_counters(),
            {"conduit-py, Arrow table": arrow_w1},
            where_installed(**_bytewax(peers.bytewax_w1)),
        ),
    ),
    "W1x2": Work(
        "W1 into two destinations",
        beside(
            loops.plain_loop(),
            {"typed loop": loops.typed_loop_w1},
            by_style(lambda style: generated_into_counters(style, destinations=2)),
            where_installed(bytewax=("bytewax", peers.bytewax_w1x2)),
        ),
    ),
    "W2": Work(
        "a JSON-lines file, parse, set a field, drop one in ten, a JSON-lines file",
        beside(
            loops.plain_loop_w2,
            _FILE_LOOPS,
            _between_files(),
            where_installed(**_bytewax(peers.bytewax_w2)),
            where_installed(DuckDB=("duckdb", peers.duckdb_w2), polars=("polars", peers.polars_w2)),
        ),
        write_lines,
    ),
    "W3": Work(
        "W2, output synced and position durable at least every second",
        beside(
            loops.plain_loop_w2,
            _FILE_LOOPS | {"durable loop": loops.durable_loop},
            by_style(lambda style: file_to_file(style.from_fields)),
            where_installed(**{"bytewax, recovery": ("bytewax", peers.bytewax_w3)}),
        ),
        write_lines,
    ),
    "W4": Work(
        "W2 exactly once",
        beside(
            loops.plain_loop_w2,
            _FILE_LOOPS | {"durable loop": loops.durable_loop},
            by_style(lambda style: file_to_file(style.from_fields), " (W2)"),
            by_style(lambda style: file_to_file(style.from_fields, "exactly_once"), ", exactly once"),
        ),
        write_lines,
    ),
    "W5": W5,
}


# With the state in memory: how often SQLite commits depends on the clock, and valgrind slows down everything else.
_COUNTED = {
    "W1m": Work(
        "W1 with the state in memory, to count instructions",
        beside(loops.plain_loop(), {"typed loop": loops.typed_loop_w1}, _into_counters(in_memory=True)),
    ),
    "W2m": Work(
        "W2 with the state in memory, to count instructions",
        beside(loops.plain_loop_w2, _FILE_LOOPS, _between_files(in_memory=True)),
        write_lines,
    ),
    "Gm": COUNTED_G,
}


def _growth(title: str, loop: Contender, contender: Callable[[Style], Contender], records: int = 100_000) -> Work:
    return Work(title, beside(loop, by_style(contender)), records=records)


def _of_size(size: int) -> Work:
    make = partial(sized, size=size)
    return _growth(
        f"W1 with records of {size} bytes",
        loops.plain_loop(make),
        lambda style: generated_into_counters(style, make=make),
    )


def _through_processors(count: int) -> Work:
    return _growth(
        f"W1 through {count} processors: one parses, the others set a field",
        loops.chained_loop(count),
        lambda style: generated_into_counters(style, [style.parse, *[style.set_cents] * count][:count]),
    )


def _into_destinations(count: int) -> Work:
    return _growth(
        f"W1 into {count} destinations",
        loops.plain_loop(),
        lambda style: generated_into_counters(style, destinations=count),
    )


def _read_at_once(count: int) -> Work:
    return _growth(
        f"W1 from a source that returns {count} records at a time",
        loops.plain_loop(),
        lambda style: generated_into_counters(style, at_once=count),
    )


def _in_pipelines(count: int) -> Work:
    return _growth(
        f"the records of W1 shared between {count} pipelines",
        loops.plain_loop(),
        lambda style: many_pipelines(style, count),
        # Enough that starting 200 pipelines, which is part of it, is not all of it.
        records=1_000_000,
    )


_GROWTH = {
    **{f"size {size}": _of_size(size) for size in (25, 100, 200, 1000, 10_000)},
    **{f"processors {count}": _through_processors(count) for count in (0, 1, 2, 5, 10, 20)},
    **{f"destinations {count}": _into_destinations(count) for count in (1, 2, 4, 8)},
    **{f"reads {count}": _read_at_once(count) for count in (1, 16, 256)},
    **{f"pipelines {count}": _in_pipelines(count) for count in (1, 10, 50, 200)},
}

WORKS: dict[str, Work] = _WORKS | {"G": G} | _COUNTED | journal.WORKS | _GROWTH
GROUPS: dict[str, list[str]] = {
    "works": [*_WORKS, "G"],
    "counted": [*_COUNTED],
    "journal": [*journal.WORKS],
    "growth": [*_GROWTH],
    "all": [*WORKS],
}
