"""Conduit's YAML files: the exact words about every problem."""

from collections.abc import Callable

import pytest

from conduit_py.config.loaded import Loaded
from conduit_py.config.yaml_document import DOCUMENTS_MAX, FILE_PROBLEMS_MAX, PROBLEMS_MAX, WARNINGS_MAX

Load = Callable[..., Loaded]
Said = Callable[[Loaded], list[str]]

PROBLEMS = """\
version: 2.2
pipelines:
  - status: on
    name: [a]
    connectors:
      - type: source
      - id: "b c"
        type: sink
        plugin: log
      - id: d
        type: destination
        plugin: builtin:flie
        settings: path
      - id: d
        type: source
        plugin: standalone:chaos
      - just text
      - id: e
        type: source
        plugin: generator
        settings:
          rate: fast
          format.options: {id: int}
          recordCount: [1]
    processors:
      - id: p
        plugin: field.sett
      - id: q
        plugin: field.set
        workers: -1
        condition: '{{ eqq .Metadata.a "b" }}'
        settings: {field: .Position}
      - id: r
        condition: {{ true }}
        plugin: filter
    dead-letter-queue:
      plugin: builtin:file
      window-size: 2
      window-nack-threshold: 2
"""


def test_a_misspelt_type_of_a_connector_has_a_suggestion(load: Load, said: Said) -> None:
    text = "version: 2.2\npipelines:\n  - id: p\n    connectors:\n      - {id: in, type: sorce, plugin: generator}\n"

    assert said(load(text))[0] == (
        "pipelines.yaml:5: pipelines.p.connectors.in.type: must be source or destination, not 'sorce' "
        "(did you mean 'source'?)"
    )


def test_workers_run_in_threads_or_in_processes(load: Load, said: Said) -> None:
    text = (
        "version: 2.2\npipelines:\n  - id: p\n    connectors:\n"
        "      - {id: in, type: source, plugin: generator}\n      - {id: out, type: destination, plugin: log}\n"
        "    processors:\n      - {id: q, plugin: filter, workers: 2, where: WHERE}\n"
    )

    (loaded,) = load(text.replace("WHERE", "process")).pipelines
    assert [(each.workers, each.where) for each in loaded.pipeline.processors] == [(2, "process")]
    assert said(load(text.replace("WHERE", "cloud"))) == [
        "pipelines.yaml:8: pipelines.p.processors.q.where: must be thread or process, not 'cloud'"
    ]


def test_all_problems_are_reported_at_once_with_line_and_suggestion(load: Load, said: Said) -> None:
    loaded = load(PROBLEMS)

    assert loaded.pipelines == ()
    assert said(loaded) == [
        "pipelines.yaml:3: pipelines[0].id: is required (add id: …)",
        "pipelines.yaml:3: pipelines[0].status: must be running or stopped, not 'on'",
        "pipelines.yaml:4: pipelines[0].name: must be text, not a list (write a list as one text, with commas)",
        "pipelines.yaml:6: pipelines[0].connectors[0].id: is required (add id: …)",
        "pipelines.yaml:6: pipelines[0].connectors[0].plugin: is required (add plugin: …)",
        "pipelines.yaml:7: pipelines[0].connectors[1].id: must be 1 to 256 letters, digits, - _ : or . and not 'b c'",
        "pipelines.yaml:8: pipelines[0].connectors[1].type: must be source or destination, not 'sink'",
        "pipelines.yaml:12: pipelines[0].connectors.d.plugin: there is no destination plugin 'flie' "
        "(did you mean 'file'?)",
        "pipelines.yaml:13: pipelines[0].connectors.d.settings: must be a mapping, not 'path' "
        "(write `name: value` lines below it)",
        "pipelines.yaml:14: pipelines[0].connectors.d.id: the id 'd' is already taken by the one in "
        "line 10 (give every node an id of its own)",
        "pipelines.yaml:16: pipelines[0].connectors.d.plugin: standalone plugins are programs for Conduit and cannot "
        "run here (write chaos to use a plugin of that name that is installed here)",
        "pipelines.yaml:17: pipelines[0].connectors[4]: must be a mapping, not 'just text' (begin with `- id: …`)",
        "pipelines.yaml:22: pipelines[0].connectors.e.settings.rate: must be a number, 0 or more, not 'fast'",
        "pipelines.yaml:23: pipelines[0].connectors.e.settings.format.options: must be text, not a mapping "
        "(write `format.options.NAME: …` for each key inside of it)",
        "pipelines.yaml:24: pipelines[0].connectors.e.settings.recordCount: must be text, not a list "
        "(write a list as one text, with commas)",
        "pipelines.yaml:27: pipelines[0].processors.p.plugin: there is no processor plugin 'field.sett' "
        "(did you mean 'field.set'?)",
        "pipelines.yaml:30: pipelines[0].processors.q.workers: must be a whole number, 0 or more, not '-1'",
        "pipelines.yaml:31: pipelines[0].processors.q.condition: there is no function 'eqq', at character 4 "
        "(did you mean 'eq'?)",
        "pipelines.yaml:32: pipelines[0].processors.q.settings.field: must be a field path such as "
        ".Payload.After.name (.Position belongs to the source and never changes), not '.Position'",
        "pipelines.yaml:32: pipelines[0].processors.q.settings.value: this setting is required (add `value: …`, a "
        "constant, a template such as {{ .Payload.After.name | upper }}, or a function of the record)",
        "pipelines.yaml:34: pipelines[0].processors.r.condition: must be text, not a mapping "
        "(put a template in single quotes: '{{ … }}')",
        "pipelines.yaml:37: pipelines[0].dead-letter-queue.settings.path: this setting is required (add `path: …`, the "
        "file to append to; it and its folders are created when missing)",
        "pipelines.yaml:39: pipelines[0].dead-letter-queue.window-nack-threshold: must be below window-size, which is "
        "2 (set window-size to 3 or more, or to 0 for no limit)",
    ]


@pytest.mark.parametrize(
    ("connectors", "expected"),
    [
        (
            "",
            [
                "pipelines.yaml:3: pipelines.a.connectors: a pipeline needs at least one source "
                "(add a connector with `type: source`)",
                "pipelines.yaml:3: pipelines.a.connectors: a pipeline needs at least one destination "
                "(add a connector with `type: destination`)",
            ],
        ),
        (
            "    connectors:\n      - {id: in, type: source, plugin: generator}\n",
            [
                "pipelines.yaml:5: pipelines.a.connectors: a pipeline needs at least one destination "
                "(add a connector with `type: destination`)",
            ],
        ),
        (
            "    connectors:\n      in: {type: source, plugin: generator}\n",
            [
                "pipelines.yaml:5: pipelines.a.connectors: must be a list, not a mapping "
                "(begin each entry with `- id: …`; mappings by name are of version 1)",
                "pipelines.yaml:5: pipelines.a.connectors: a pipeline needs at least one source "
                "(add a connector with `type: source`)",
                "pipelines.yaml:5: pipelines.a.connectors: a pipeline needs at least one destination "
                "(add a connector with `type: destination`)",
            ],
        ),
        (
            "    connectors:\n      - {id: dead-letters, type: source, plugin: generator}\n"
            "      - {id: out, type: destination, plugin: log}\n",
            [
                "pipelines.yaml:5: pipelines.a.dead-letters: the id 'dead-letters' is already taken by the dead-letter "
                "handler (give every node an id of its own)",
            ],
        ),
    ],
)
def test_a_pipeline_needs_ends(load: Load, said: Said, connectors: str, expected: list[str]) -> None:
    assert said(load(f"version: 2.2\npipelines:\n  - id: a\n{connectors}")) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["warning: pipelines.yaml: there is no pipeline in this file"]),
        ("# nothing\n---\n", ["warning: pipelines.yaml: there is no pipeline in this file"]),
        ("version: 2.2\npipelines: []\n", ["warning: pipelines.yaml: there is no pipeline in this file"]),
        (
            "version: 2.2\n",
            ["pipelines.yaml:1: pipelines: is required (add `pipelines:` with a list below it)"],
        ),
        (
            "- id: a\n",
            ["pipelines.yaml:1: the document must be a mapping (begin with `version: 2.2` and `pipelines:`)"],
        ),
        ("a: 1\n b: 2\n", ["pipelines.yaml:2: not valid YAML: mapping values are not allowed here "
                           "(check the indentation; a value with a colon and a blank in it needs quotes)"]),
        ("a: [1,\n", ["pipelines.yaml:2: not valid YAML: expected the node content, but found '<stream end>'"]),
        ("\n\ta: 1\n", ["pipelines.yaml:2: not valid YAML: found character '\\t' that cannot start any token "
                        "(indent with spaces, not with tabs)"]),
        ("a: `b`\n", ["pipelines.yaml:1: not valid YAML: found character '`' that cannot start any token "
                      "(put a value that begins with ` in quotes)"]),
        ("c: `{{ true }}`\n", ["pipelines.yaml:1: not valid YAML: found character '`' that cannot start any token "
                               "(put a template in single quotes: '{{ … }}')"]),
        ("a: {b: ${C}}\n", ["pipelines.yaml:1: not valid YAML: expected ',' or '}', but got '{' "
                           "(put a value with ${…} in quotes where there are braces around it)"]),
        ("a: *b\n", ["pipelines.yaml:1: not valid YAML: found undefined alias 'b' "
                     "(put a value that begins with * in quotes)"]),
        ("a: 1\nb: \x07\n", ["pipelines.yaml:2: not valid YAML: unacceptable character #x0007: special characters are "
                             "not allowed"]),
        ("a: " + "[" * 5000, ["pipelines.yaml:1: is nested too deeply to be a pipeline"]),
    ],
)  # fmt: skip
def test_files_that_hold_no_pipelines(load: Load, said: Said, text: str, expected: list[str]) -> None:
    loaded = load(text)

    assert (loaded.pipelines, said(loaded)) == ((), expected)


def test_a_broken_document_or_pipeline_does_not_stop_the_others(load: Load, said: Said, ends: str) -> None:
    text = f"""\
# The first document has no marker.
version: 2.2
pipelines:
  - id: one
{ends}  - id: broken
    status: paused
{ends}  - id: two
{ends}---
version: 2.2
pipelines: [
...
%YAML 1.1
---
version: 2.1
pipelines:
  - id: three
{ends}...
---
version: 1.0
---
version: 2.2
pipelines:
  - id: four
{ends}"""
    loaded = load(text)

    assert [(pipeline.id, pipeline.line) for pipeline in loaded.pipelines] == [
        ("one", 4),
        ("two", 13),
        ("three", 25),
        ("four", 35),
    ]
    assert [line.partition(" (")[0] for line in said(loaded)] == [
        "pipelines.yaml:9: pipelines.broken.status: must be running or stopped, not 'paused'",
        "pipelines.yaml:20: not valid YAML: expected the node content, but found '<document end>'",
        "pipelines.yaml:31: version: 1.0 is too old: files of version 1 cannot be read",
    ]


def test_a_condition_that_spans_lines_has_its_problem_in_the_right_one(load: Load, said: Said, ends: str) -> None:
    condition = "        condition: |\n          {{ if true }}\n          {{ nope }}\n          {{ end }}\n"
    processors = f"    processors:\n      - id: p\n        plugin: filter\n{condition}"

    assert said(load(f"version: 2.2\npipelines:\n  - id: a\n{ends}{processors}"))[0].startswith(
        "pipelines.yaml:12: pipelines.a.processors.p.condition: there is no function 'nope', at character 4"
    )


def test_keys_that_stand_twice_are_problems(load: Load, said: Said, ends: str) -> None:
    text = f"version: 2.2\npipelines:\n  - id: a\n    status: running\n    status: stopped\n{ends}"

    assert said(load(text)) == ["pipelines.yaml:5: pipelines.a.status: is there twice, first in line 4"]


def test_a_file_of_very_many_documents_is_not_read_to_its_end(load: Load) -> None:
    problems = load("a: 1\n---\n" * 100_000).problems

    assert len(problems) == DOCUMENTS_MAX + 1
    assert problems[-1].message == "the file was not read to its end: it has more than 1000 documents"
    assert problems[-1].line == 2 * DOCUMENTS_MAX


def test_a_file_of_very_many_problems_is_not_read_to_its_end(load: Load) -> None:
    problems = load(("pipelines:\n" + "  - a\n" * 500 + "---\n") * 100).problems

    assert FILE_PROBLEMS_MAX < len(problems) <= FILE_PROBLEMS_MAX + PROBLEMS_MAX
    assert problems[-1].message == "the file was not read to its end: it has more than 5000 problems"


def test_of_very_many_warnings_the_first_are_kept(load: Load, ends: str) -> None:
    strange = "".join(f"    k{number}: 1\n" for number in range(2 * WARNINGS_MAX))
    loaded = load(f"version: 2.2\npipelines:\n  - id: a\n{ends}{strange}")

    assert [pipeline.id for pipeline in loaded.pipelines] == ["a"]
    assert len(loaded.warnings) == WARNINGS_MAX + 1
    assert loaded.warnings[-1].message == "there are more than 1000 warnings"


def encoding(ends: str, *settings: str) -> str:
    lines = "".join(f"          {line}\n" for line in ("url: http://localhost:1", "schema_file: s.avsc", *settings))
    processors = f"    processors:\n      - id: p\n        plugin: avro.encode\n        settings:\n{lines}"
    return f"version: 2.2\npipelines:\n  - id: a\n{ends}{processors}"


def test_a_list_of_objects_is_written_with_numbers(load: Load, said: Said, ends: str) -> None:
    entries = [f"references.{n}.{part}" for n in range(2) for part in ("name: a", "subject: b.c", f"version: {n + 1}")]
    loaded = load(encoding(ends, *reversed(entries)))
    gap = load(encoding(ends, *entries[3:]))
    wrong = load(encoding(ends, *entries[:2], "references.0.version: x"))
    nested = load(encoding(ends, "references: [{name: a}]"))

    assert said(loaded) == []
    [processor] = loaded.pipelines[0].pipeline.processors
    assert processor.processor is not None
    made = [each.model_dump() for each in processor.processor.options.references]  # type: ignore[attr-defined]
    assert made == [{"name": "a", "subject": "b.c", "version": number} for number in (1, 2)]
    assert "is in a list, whose entries are numbered from 0 without a gap" in said(gap)[0]
    assert "pipelines.a.processors.p.settings.references.0.version: Input should be a valid integer" in said(wrong)[0]
    assert "write `references.0.NAME: …`" in said(nested)[0]
