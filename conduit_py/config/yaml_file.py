"""load_yaml: the pipelines of a Conduit 2.x YAML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from conduit_py.config.diagnostics import Diagnostics, DocumentTooLarge
from conduit_py.config.interpolation import Interpolator
from conduit_py.config.loaded import Loaded, LoadedPipeline
from conduit_py.config.yaml_document import Document, read_documents
from conduit_py.config.yaml_pipeline import PIPELINE_KEYS, read_pipeline
from conduit_py.config.yaml_section import DocumentContext, Section
from conduit_py.sdk.plugin import did_you_mean

SUFFIXES: Final = (".yaml", ".yml")
SIZE_MAX: Final = 1024 * 1024
LATEST: Final = "2.2"
VERSIONS: Final = ("2.0", "2.1", "2.2")
DOCUMENT_KEYS: Final = ["version", "pipelines"]


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
