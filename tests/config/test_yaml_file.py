"""Conduit's YAML files: every key, versions, anchors, limits and references."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_py.config.loaded import Loaded
from conduit_py.config.yaml_file import SIZE_MAX, load_yaml
from conduit_py.pipeline import Processor
from conduit_py.sdk.template import TemplateCondition

Load = Callable[..., Loaded]
Said = Callable[[Loaded], list[str]]

EVERYTHING = """\
version: 2.2
pipelines:
  - id: orders
    status: stopped
    name: All orders
    description: >
      Of every
      kind.
    connectors:
      - id: shop
        type: source
        plugin: builtin:generator@v0.10.4
        name: the shop
        settings:
          rate: 10
          format.type: structured
          format.options.id: int
          sdk.batch.size: "50"
        processors:
          - id: mark
            plugin: field.set
            settings: {field: .Metadata.from, value: shop}
      - id: archive
        type: destination
        plugin: file
        settings:
          path: ./out.jsonl
        processors:
          - id: only-large
            plugin: builtin:filter
            condition: '{{ lt .Payload.After.id 100 }}'
    processors:
      - id: convert
        plugin: field.convert
        workers: 4
        settings:
          field: .Payload.After.id
          type: string
      - id: shop
        plugin: filter
        condition: "{{ eq .Operation.String \\"delete\\" }}"
    dead-letter-queue:
      plugin: builtin:file
      settings:
        path: ./dead.jsonl
      window-size: 5
      window-nack-threshold: 2
"""


def describe(processors: list[Processor]) -> list[tuple[str, str, int, object]]:
    return [(each.id, type(each.processor).__name__, each.workers, each.when) for each in processors]


def test_every_key_is_read(load: Load, said: Said, tmp_path: Path) -> None:
    loaded = load(EVERYTHING)
    ((orders,), problems, _) = loaded
    pipeline, dead_letters = orders.pipeline, orders.pipeline.dead_letters
    (shop,), (archive,) = pipeline.sources, pipeline.destinations

    assert problems == ()
    assert said(loaded) == [
        "warning: pipelines.yaml:12:17: pipelines.orders.connectors.shop.plugin: "
        "the version v0.10.4 has no effect: the plugin that is installed is used"
    ]
    assert (orders.id, orders.name, orders.desired) == ("orders", "All orders", "stopped")
    assert (orders.file, orders.line, orders.place) == (
        tmp_path / "pipelines.yaml",
        3,
        f"{tmp_path}/pipelines.yaml:3",
    )
    assert pipeline.settings.description == "Of every kind.\n"
    assert (shop.id, shop.batch_size, shop.connector.options.rate) == ("shop", 50, 10)
    assert shop.connector.options.fields == {"id": "int"}
    assert describe(shop.processors) == [("mark", "Set", 1, None)]
    assert (archive.id, archive.connector.options.path) == ("archive", Path("out.jsonl"))
    assert describe(archive.processors) == [
        ("only-large", "Filter", 1, TemplateCondition("{{ lt .Payload.After.id 100 }}"))
    ]
    assert describe(pipeline.processors) == [
        ("convert", "Convert", 4, None),
        # In Conduit a processor may be called like a connector; here it is called as Conduit keeps it.
        ("orders:shop", "Filter", 1, TemplateCondition('{{ eq .Operation.String "delete" }}')),
    ]
    assert dead_letters.policy.connector.options.path == Path("dead.jsonl")  # type: ignore[union-attr]
    assert (dead_letters.settings.window_size, dead_letters.settings.window_nack_threshold) == (5, 2)


def test_what_is_left_out_is_as_in_conduit(load: Load, said: Said, ends: str) -> None:
    loaded = load(f"version: '2.2'\npipelines:\n  - id: a\n{ends}")
    (a,) = loaded.pipelines
    dead_letters = a.pipeline.dead_letters

    assert said(loaded) == []
    assert (a.desired, a.name, a.pipeline.settings.description) == ("running", "a", "")
    assert type(dead_letters.policy.connector).__module__ == "conduit_connectors.log"
    assert dead_letters.policy.connector.options.level == "warning"  # type: ignore[union-attr]
    assert dead_letters.policy.connector.options.message == "record delivery failed"  # type: ignore[union-attr]
    assert (dead_letters.settings.window_size, dead_letters.settings.window_nack_threshold) == (1, 0)


@pytest.mark.parametrize(
    ("queue", "window", "level"),
    [
        ("{}", (1, 0), "warning"),
        ("{plugin: log}", (1, 0), "warning"),
        ("{window-size: 0, window-nack-threshold: 7}", (0, 0), "warning"),
        ("{window-size: 10, window-nack-threshold: 9}", (10, 9), "warning"),
        ("{settings: {level: error}}", (1, 0), "error"),
        ("", (1, 0), "warning"),
    ],
)
def test_parts_of_the_dead_letter_queue_may_be_left_out(
    load: Load, ends: str, queue: str, window: tuple[int, int], level: str
) -> None:
    (a,) = load(f"version: 2.2\npipelines:\n  - id: a\n{ends}    dead-letter-queue: {queue}\n").pipelines
    dead_letters = a.pipeline.dead_letters

    assert (dead_letters.settings.window_size, dead_letters.settings.window_nack_threshold) == window
    assert dead_letters.policy.connector.options.level == level  # type: ignore[union-attr]


@pytest.mark.parametrize("plugin", ["journal", "builtin:journal"])
def test_dead_letters_may_be_kept_in_the_journal(load: Load, ends: str, plugin: str) -> None:
    queue = f"{{plugin: '{plugin}', window-size: 0}}"
    (a,) = load(f"version: 2.2\npipelines:\n  - id: a\n{ends}    dead-letter-queue: {queue}\n").pipelines

    assert a.pipeline.dead_letters.policy.keeps


def test_the_journal_has_no_settings(load: Load, ends: str, said: Said) -> None:
    queue = "{plugin: journal, settings: {path: x}}"
    loaded = load(f"version: 2.2\npipelines:\n  - id: a\n{ends}    dead-letter-queue: {queue}\n")

    assert not loaded.pipelines
    assert any("the journal has none (leave them out)" in line for line in said(loaded))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("version: 2.0\n", []),
        ("version: '2.1'\n", []),
        ("version: 2.2\n", []),
        ("", ["warning: pipelines.yaml:1:1: version: is missing, so 2.2 is assumed (add `version: 2.2`)"]),
        ("version:\n", ["warning: pipelines.yaml:1:9: version: is missing, so 2.2 is assumed (add `version: 2.2`)"]),
        (
            "version: 2.12\n",
            ["warning: pipelines.yaml:1:10: version: 2.12 is not known, so 2.2 is assumed (known are 2.0, 2.1, 2.2)"],
        ),
    ],
)
def test_versions_that_can_be_read(load: Load, said: Said, ends: str, version: str, expected: list[str]) -> None:
    loaded = load(f"{version}pipelines:\n  - id: a\n{ends}")

    assert [pipeline.id for pipeline in loaded.pipelines] == ["a"]
    assert said(loaded) == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "1.1",
            "pipelines.yaml:1: version: 1.1 is too old: files of version 1 cannot be read (write `version: 2.2`, make "
            "connectors and processors lists, and give each entry what was its key as `- id:`)",
        ),
        ("99.0", "pipelines.yaml:1: version: '99.0' is not known (known are 2.0, 2.1, 2.2)"),
        ("latest", "pipelines.yaml:1: version: 'latest' is not known (known are 2.0, 2.1, 2.2)"),
    ],
)
def test_versions_that_cannot_be_read(load: Load, said: Said, version: str, expected: str) -> None:
    loaded = load(f"version: {version}\npipelines: {{a: {{status: running}}}}\n")

    assert (loaded.pipelines, said(loaded)) == ((), [expected])


def test_keys_that_came_later_and_those_that_are_no_more_are_warnings(load: Load, said: Said, ends: str) -> None:
    processors = "    processors:\n      - {id: p, plugin: filter, condition: '{{ true }}'}\n"
    old = load(f"version: 2.0\npipelines:\n  - id: a\n{ends}{processors}")
    older = load(f"version: 2.0\npipelines:\n  - id: a\n{ends}    processors: [{{id: p, type: filter}}]\n")
    new = load(f"version: 2.2\npipelines:\n  - id: a\n{ends}    processors: [{{id: p, type: filter}}]\n")

    assert said(old) == [
        "warning: pipelines.yaml:8:25: pipelines.a.processors.p.plugin: came with version 2.2 (set version to 2.2)",
        "warning: pipelines.yaml:8:44: pipelines.a.processors.p.condition: came with version 2.1 (set version to 2.2)",
    ]
    assert said(older) == []
    assert said(new) == [
        "warning: pipelines.yaml:7:32: pipelines.a.processors.p.type: is deprecated (write plugin instead)"
    ]
    assert [len(loaded.pipelines) for loaded in (old, older, new)] == [1, 1, 1]


def test_unknown_keys_are_warnings_with_line_and_column(load: Load, said: Said) -> None:
    text = """\
version: 2.2
Pipelines: []
pipelines:
  - id: a
    descripton: what for
    connectors:
      - id: in
        type: source
        plugin: generator
        setings: {rate: 1}
      - {id: out, type: destination, plugin: log, color: red}
    processors:
      - {id: p, plugin: filter, when: '{{ true }}'}
    dead-letter-queue:
      window_size: 5
"""
    loaded = load(text)

    assert [pipeline.id for pipeline in loaded.pipelines] == ["a"]
    assert said(loaded) == [
        "warning: pipelines.yaml:2:1: Pipelines: there is no such key, so it has no effect (did you mean 'pipelines'?)",
        "warning: pipelines.yaml:5:5: pipelines.a.descripton: there is no such key, so it has no effect "
        "(did you mean 'description'?)",
        "warning: pipelines.yaml:10:9: pipelines.a.connectors.in.setings: there is no such key, so it has no effect "
        "(did you mean 'settings'?)",
        "warning: pipelines.yaml:11:51: pipelines.a.connectors.out.color: there is no such key, so it has no effect "
        "(keys are id, type, plugin, name, settings, processors, rate, atomic, schedule, timezone, window, batch-size, "
        "batch-bytes, batch-seconds)",
        "warning: pipelines.yaml:13:33: pipelines.a.processors.p.when: there is no such key, so it has no effect "
        "(did you mean 'where'?)",
        "warning: pipelines.yaml:15:7: pipelines.a.dead-letter-queue.window_size: there is no such key, so it has no "
        "effect (did you mean 'window-size'?)",
    ]


def test_anchors_and_merges_are_understood(load: Load, said: Said) -> None:
    text = """\
version: 2.2
pipelines:
  - id: a
    connectors:
      - &base
        id: in
        type: source
        plugin: generator
        settings: &pace {rate: 5, recordCount: 1}
      - <<: *base
        id: more
        settings:
          <<: *pace
          rate: 7
      - {id: out, type: destination, plugin: log}
"""
    loaded = load(text)
    (a,) = loaded.pipelines

    assert said(loaded) == []
    assert [(source.id, source.connector.options.rate) for source in a.pipeline.sources] == [("in", 5), ("more", 7)]
    assert a.pipeline.sources[1].connector.options.count == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("!!python/object/apply:os.system [ls]", "must be text, not a list (write a list as one text, with commas)"),
        ("!!python/name:os.system ''", "the tag !!python/name:os.system is not supported (leave it out)"),
        ("!secret x", "the tag !secret is not supported (leave it out)"),
        ("!!binary aGk=", "the tag !!binary is not supported (leave it out)"),
    ],
)
def test_tags_make_nothing(load: Load, said: Said, value: str, message: str) -> None:
    lines = said(load(f"version: 2.2\npipelines:\n  - name: {value}\n    id: a\n"))

    assert f"pipelines.yaml:3: pipelines.a.name: {message}" in lines


def test_a_few_lines_that_stand_for_billions_are_refused(load: Load, said: Said, ends: str) -> None:
    many = ", ".join(["*connector"] * 1000)
    text = f"""\
version: 2.2
pipelines:
  - id: a
    connectors:
      - &connector {{id: in, type: source, plugin: generator}}
  - id: b
    connectors: &connectors [{many}]
{"".join(f"  - {{id: c{number}, connectors: *connectors}}{chr(10)}" for number in range(1000))}---
version: 2.2
pipelines:
  - id: d
{ends}"""
    loaded = load(text)

    assert [pipeline.id for pipeline in loaded.pipelines] == ["d"]
    assert said(loaded)[0] == (
        "pipelines.yaml:1: the document was not read to its end: it has more than 1000 problems "
        "(use fewer aliases, or several files)"
    )
    assert len(loaded.problems) == 3


def test_a_document_of_more_entries_than_anybody_would_write_is_refused(load: Load, said: Said) -> None:
    settings = ", ".join(f"format.options.f{number}: int" for number in range(1000))
    text = f"version: 2.2\npipelines:\n  - id: a\n    connectors:\n      - &c {{id: in, settings: &s {{{settings}}}}}\n"
    sources = "".join(f"      - {{id: x{n}, type: source, plugin: generator, settings: *s}}\n" for n in range(120))

    assert said(load(text + sources))[0] == (
        "pipelines.yaml:1: the document was not read to its end: it has more than 100000 entries "
        "(use fewer aliases, or several files)"
    )


def test_an_anchor_inside_of_itself_is_no_trap(load: Load, said: Said) -> None:
    loaded = load("version: 2.2\npipelines: &p\n  - &x\n    id: a\n    <<: *x\n    connectors: *p\n")

    assert loaded.pipelines == ()
    assert any("is merged too deeply" in line for line in said(loaded))


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_bytes(b"name: caf\xe9\n")
    (tmp_path / "large.yaml").write_bytes(b"#" * (SIZE_MAX + 1))
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfversion: 9\n")

    assert [str(load_yaml(tmp_path / name).problems[0]).replace(f"{tmp_path}/", "") for name in (
        "orders.yaml", "large.yaml", "order.yaml", "bom.yaml", "."
    )] == [
        "orders.yaml: is not UTF-8 text: invalid continuation byte at byte 9",
        f"large.yaml: is larger than {SIZE_MAX} bytes (split it into several files)",
        "order.yaml: there is no such file (did you mean 'orders.yaml'?)",
        "bom.yaml:1: version: '9' is not known (known are 2.0, 2.1, 2.2)",
        f"{tmp_path}: cannot be read: Is a directory",
    ]  # fmt: skip


def test_references_are_resolved_and_never_printed(load: Load, said: Said) -> None:
    text = """\
version: 2.2
pipelines:
  - id: ${NAME}-orders
    description: from ${NAME}
    connectors:
      - {id: in, type: source, plugin: generator, settings: {recordCount: "${COUNT:-3}", rate: "${RATE}"}}
      - {id: out, type: destination, plugin: file, settings: {path: "$$/env:X", format: "env:SHAPE"}}
    processors:
      - {id: p, plugin: filter, condition: '{{ eq .Metadata.a "${TOKEN}" }}'}
"""
    good = {"NAME": "big", "RATE": "5", "SHAPE": "csv", "TOKEN": "tok-91347"}
    (pipeline,) = load(text, good).pipelines
    bad = said(load(text, {"NAME": "big", "SHAPE": "s3cret-shape", "RATE": "s3cret-rate", "TOKEN": "x"}))

    assert pipeline.id == "big-orders"
    assert pipeline.pipeline.settings.description == "from big"
    assert pipeline.pipeline.sources[0].connector.options.count == 3
    assert pipeline.pipeline.destinations[0].connector.options.path == Path("$/env:X")
    assert pipeline.pipeline.destinations[0].connector.options.format == "csv"
    assert pipeline.pipeline.processors[0].when == TemplateCondition('{{ eq .Metadata.a "tok-91347" }}')
    assert bad == [
        "pipelines.yaml:6: pipelines[0].connectors.in.settings.rate: must be a number, 0 or more",
        "pipelines.yaml:7: pipelines[0].connectors.out.settings.format: "
        "Input should be 'lines', 'json', 'csv' or 'opencdc'",
    ]


def test_a_variable_that_is_not_set_is_a_problem_that_names_it(load: Load, said: Said, ends: str) -> None:
    text = f"version: 2.2\npipelines:\n  - id: a\n    name: ${{NAME}}\n    description: $HOME\n{ends}"
    loaded = load(text)

    assert said(loaded) == [
        "pipelines.yaml:4: pipelines.a.name: the environment variable NAME is not set "
        "(set it, or give a default: ${NAME:-…})",
        "warning: pipelines.yaml:5:18: pipelines.a.description: $HOME is not replaced here, although Conduit "
        "replaces it (write ${HOME} for the environment variable, or $$HOME for this text)",
    ]
    assert loaded.pipelines == ()
