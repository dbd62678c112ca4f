"""A pipeline of a YAML file: one entry of the list `pipelines`."""

from pathlib import Path
from typing import Final

from conduit_py.config.loaded import Desired, LoadedPipeline
from conduit_py.config.yaml_delivery import TRANSACTION_KEYS, read_delivery, read_transaction
from conduit_py.config.yaml_engine import read_engine
from conduit_py.config.yaml_nodes import QUEUE_KEYS, Connectors, read_dead_letters, read_processors
from conduit_py.config.yaml_plugin import read_id, set_place
from conduit_py.config.yaml_section import Section
from conduit_py.errors import PipelineInvalid
from conduit_py.graph.compile import compile_pipeline
from conduit_py.pipeline import Pipeline, Processor
from conduit_py.sdk.options import did_you_mean

PIPELINE_KEYS: Final = [
    "id", "status", "name", "description", "connectors", "processors", "dead-letter-queue", "delivery", "transaction",
    "engine", "spark",
]  # fmt: skip
NAME_LENGTH_MAX: Final = 128
DESCRIPTION_LENGTH_MAX: Final = 8192


def read_pipeline(section: Section, version: str) -> LoadedPipeline | None:
    """The pipeline of a section; None, and all its mistakes among the findings, when it has any."""
    diagnostics = section.under.diagnostics
    mistakes_before = len(diagnostics.problems)
    id = read_id(section, {}, NAME_LENGTH_MAX)
    desired = _desired(section)
    name = section.text("name", length_max=NAME_LENGTH_MAX)
    description = section.text("description", length_max=DESCRIPTION_LENGTH_MAX) or ""
    connectors = Connectors(section, version)
    _refuse_missing(section, connectors)
    processors = read_processors(section, version)
    delivery = read_delivery(section)
    transaction = read_transaction(section.section("transaction", TRANSACTION_KEYS))
    engine = read_engine(section)
    dead_letters = read_dead_letters(section.section("dead-letter-queue", QUEUE_KEYS), delivery)
    if len(diagnostics.problems) > mistakes_before or id is None:
        return None
    pipeline = Pipeline(
        id,
        sources=connectors.sources,
        destinations=connectors.destinations,
        processors=[_distinct(processor, connectors, id) for processor in processors],
        dead_letters=dead_letters,
        description=description,
        delivery=delivery,
        transaction=transaction,
        engine=engine,
    )
    set_place(pipeline, section)
    if not _is_sound(pipeline, section):
        return None
    return LoadedPipeline(pipeline, Path(diagnostics.file), section.spot.line, desired, name or id)


def _desired(section: Section) -> Desired:
    status = section.text("status")
    if status == "stopped":
        return "stopped"
    if status not in (None, "running"):
        hint = did_you_mean(status.strip().lower(), ["running", "stopped"])
        section.problem("status", f"must be running or stopped, not {status[:40]!r}", hint)
    return "running"


def _refuse_missing(section: Section, connectors: Connectors) -> None:
    for kind in ("source", "destination"):
        if kind not in connectors.kinds:
            hint = f"add a connector with `type: {kind}`"
            section.problem("connectors", f"a pipeline needs at least one {kind}", hint)


def _distinct(processor: Processor, connectors: Connectors, pipeline: str) -> Processor:
    """In Conduit a processor may be called like a connector, for its id is kept with that of its pipeline."""
    if processor.id in connectors.ids:
        processor.id = f"{pipeline}:{processor.id}"
    return processor


def _is_sound(pipeline: Pipeline, section: Section) -> bool:
    """Whether the graph can be run: ids that clash inside of it are found only there."""
    try:
        compile_pipeline(pipeline)
    except PipelineInvalid as invalid:
        for problem in invalid.problems:
            section.problem(problem.path, problem.message, problem.suggestion)
        return False
    return not pipeline.problems
