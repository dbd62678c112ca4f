"""load_yaml: the pipelines of a Conduit 2.x YAML file, one for each entry of its list `pipelines`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from conduit_py.config.interpolation import Interpolator
from conduit_py.config.loaded import Desired, Loaded, LoadedPipeline
from conduit_py.config.yaml_document import Diagnostics, Document, DocumentTooLarge, Location, read_documents
from conduit_py.config.yaml_nodes import QUEUE_KEYS, Connectors, read_dead_letters, read_id, read_processors, set_place
from conduit_py.config.yaml_section import DocumentContext, Section
from conduit_py.errors import PipelineInvalid
from conduit_py.pipeline import Pipeline, Processor
from conduit_py.pipeline_settings import Delivery, Engine, EngineName, PipelineSettings, Spark, TransactionLimits
from conduit_py.sdk.plugin import check_options, did_you_mean

SUFFIXES: Final = (".yaml", ".yml")
SIZE_MAX: Final = 1024 * 1024
LATEST: Final = "2.2"
VERSIONS: Final = ("2.0", "2.1", "2.2")
DOCUMENT_KEYS: Final = ["version", "pipelines"]


PIPELINE_KEYS: Final = [
    "id", "status", "name", "description", "connectors", "processors", "dead-letter-queue", "delivery", "transaction",
    "engine", "spark",
]  # fmt: skip


TRANSACTION_KEYS: Final = [name.replace("_", "-") for name in TransactionLimits.model_fields]


SPARK_KEYS: Final = ["master", "conf", "start-seconds"]


NAME_LENGTH_MAX: Final = 128


DESCRIPTION_LENGTH_MAX: Final = 8192


_DELIVERIES: Final[tuple[Delivery, ...]] = get_args(Delivery)


_DEFAULT_DELIVERY: Final[Delivery] = PipelineSettings.model_fields["delivery"].default


_ENGINES: Final[tuple[EngineName, ...]] = get_args(EngineName)


def load_yaml(file: Path, *, environment: Mapping[str, str] | None = None) -> Loaded:
    """The valid pipelines of the file, every problem of the others, and warnings. Raises nothing.

    A document or pipeline with problems does not stop the others from being loaded. References such as `${X}` are
    resolved here, so that a missing value is found before anything starts; loading again resolves them again.
    """
    diagnostics = Diagnostics(str(file))
    text = _text(file, diagnostics)
    interpolator = Interpolator(file.absolute().parent, environment=environment)
    pipelines: list[LoadedPipeline] = []
    for document in read_documents(text, diagnostics):
        try:
            pipelines += _pipelines(document, diagnostics, interpolator)
        except DocumentTooLarge as too_large:
            diagnostics.allow_more()
            hint = "use fewer aliases, or several files"
            diagnostics.problem(
                "", document.location(document.root), f"the document was not read to its end: {too_large}", hint
            )
    if not pipelines and not diagnostics.problems:
        diagnostics.warn("", None, "there is no pipeline in this file")
    return Loaded(tuple(pipelines), *diagnostics.in_order())


def _text(file: Path, diagnostics: Diagnostics) -> str:
    """The text of the file; empty, with a problem reported, when it cannot be read."""
    try:
        with file.open("rb") as opened:
            # One byte more than allowed, to tell a file that is too large from one that just fits.
            content = opened.read(SIZE_MAX + 1)
    except FileNotFoundError:
        nearby = [found.name for found in file.parent.glob("*.y*ml")] if file.parent.is_dir() else []
        diagnostics.problem("", None, "there is no such file", did_you_mean(file.name, nearby))
        return ""
    except OSError as error:
        diagnostics.problem("", None, f"cannot be read: {error.strerror}")
        return ""
    if len(content) > SIZE_MAX:
        diagnostics.problem("", None, f"is larger than {SIZE_MAX} bytes", "split it into several files")
        return ""
    try:
        # Editors on Windows begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        diagnostics.problem("", None, f"is not UTF-8 text: {error.reason} at byte {error.start}")
        return ""


def _pipelines(document: Document, diagnostics: Diagnostics, interpolator: Interpolator) -> list[LoadedPipeline]:
    root = document.root
    if not isinstance(root, yaml.MappingNode):
        hint = "begin with `version: 2.2` and `pipelines:`"
        diagnostics.problem("", document.location(root), "the document must be a mapping", hint)
        return []
    section = Section(root, "", DOCUMENT_KEYS, DocumentContext(document, diagnostics, interpolator))
    version = _version(section)
    if version is None:
        return []
    if not section.has("pipelines"):
        section.problem("pipelines", "is required", "add `pipelines:` with a list below it")
        return []
    read = [read_pipeline(each, version) for each in section.sections("pipelines", PIPELINE_KEYS)]
    return [pipeline for pipeline in read if pipeline is not None]


def _version(section: Section) -> str | None:
    """The version of the format that applies to the document, None for one that is not supported."""
    version = section.text("version")
    if version is None:
        section.warn("version", f"is missing, so {LATEST} is assumed", f"add `version: {LATEST}`")
        return LATEST
    if version in VERSIONS:
        return version
    major = version.partition(".")[0]
    if major == "2":
        known = f"known are {', '.join(VERSIONS)}"
        section.warn("version", f"{version[:20]} is not known, so {LATEST} is assumed", known)
        return LATEST
    if major == "1":
        hint = (
            f"write `version: {LATEST}`, make connectors and processors lists, and give each entry "
            "what was its key as `- id:`"
        )
        section.problem("version", f"{version[:20]} is too old: files of version 1 cannot be read", hint)
    else:
        section.problem("version", f"{version[:20]!r} is not known", f"known are {', '.join(VERSIONS)}")
    return None


def read_pipeline(section: Section, version: str) -> LoadedPipeline | None:
    """The pipeline of a section; None, with all problems reported, when it has any."""
    diagnostics = section.context.diagnostics
    problems_before = len(diagnostics.problems)
    id = read_id(section, {}, NAME_LENGTH_MAX)
    desired = _read_status(section)
    name = section.text("name", length_max=NAME_LENGTH_MAX)
    description = section.text("description", length_max=DESCRIPTION_LENGTH_MAX) or ""
    connectors = Connectors(section, version)
    _refuse_missing(section, connectors)
    processors = read_processors(section, version)
    delivery = _read_delivery(section)
    transaction = _read_transaction(section.section("transaction", TRANSACTION_KEYS))
    engine = _read_engine(section)
    dead_letters = read_dead_letters(section.section("dead-letter-queue", QUEUE_KEYS), delivery)
    # Nodes with problems are missing here, so compiling would only report problems that are not there.
    if len(diagnostics.problems) > problems_before or id is None:
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
    place, secrets = (Path(diagnostics.file), section.location.line), section.context.interpolator.readings
    loaded = LoadedPipeline(pipeline, *place, desired, name or id, secrets=secrets)
    return loaded if _is_sound(loaded, section) else None


def _read_status(section: Section) -> Desired:
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
    """In Conduit a processor may have the id of a connector, because its full id includes that of the pipeline."""
    if processor.id in connectors.ids:
        processor.id = f"{pipeline}:{processor.id}"
    return processor


def _is_sound(loaded: LoadedPipeline, section: Section) -> bool:
    """Whether the graph compiles; problems between nodes, such as ids that clash, are found only there."""
    try:
        return loaded.graph is not None
    except PipelineInvalid as invalid:
        diagnostics = section.context.diagnostics
        for problem in invalid.problems:
            # That of the node, which may be far below the pipeline's.
            known = problem.line is not None and problem.file == diagnostics.file
            location = Location(problem.line or 1, 1) if known else section.location_of(problem.path)
            diagnostics.problem(section.at(problem.path), location, problem.message, problem.suggestion)
        return False


def _read_delivery(section: Section) -> Delivery:
    """The delivery guarantee of a pipeline; as in Conduit by default."""
    text = section.text("delivery")
    for delivery in _DELIVERIES:
        if text == delivery:
            return delivery
    if text is not None:
        hint = did_you_mean(text.strip().lower(), list(_DELIVERIES))
        section.problem(
            "delivery", f"must be {', '.join(_DELIVERIES[:-1])} or {_DELIVERIES[-1]}, not {text[:40]!r}", hint
        )
    return _DEFAULT_DELIVERY


def _read_transaction(section: Section | None) -> TransactionLimits | None:
    """How much an exactly-once pipeline commits at once; None for the default, or when there are problems."""
    if section is None:
        return None
    values = {key.replace("-", "_"): text for key in TRANSACTION_KEYS if (text := section.text(key)) is not None}
    checked, problems = check_options(TransactionLimits, values, None)
    for problem in problems:
        section.problem(problem.path.replace("_", "-"), problem.message.replace("_seconds", "-seconds"))
    return checked if isinstance(checked, TransactionLimits) else None


def _read_engine(section: Section) -> Engine:
    """The engine of a pipeline; this machine by default."""
    name = section.text("engine")
    if name is not None and name not in _ENGINES:
        hint = did_you_mean(name.strip().lower(), list(_ENGINES))
        section.problem("engine", f"must be {' or '.join(_ENGINES)}, not {name[:40]!r}", hint)
    settings = section.section("spark", SPARK_KEYS)
    if settings is not None and name != "spark":
        section.problem("spark", "requires engine: spark", "add `engine: spark`")
    if name != "spark":
        return "trio"
    return "spark" if settings is None else _read_spark(settings)


def _read_spark(section: Section) -> Engine:
    texts = {key.replace("-", "_"): section.text(key) for key in ("master", "start-seconds")}
    values: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    values["conf"] = {name: setting.text for name, setting in section.settings("conf").values.items()}
    checked, problems = check_options(Spark, values, None)
    for problem in problems:
        section.problem(problem.path.replace("_", "-"), problem.message)
    return checked if isinstance(checked, Spark) else "spark"
