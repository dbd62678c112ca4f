"""Settings of Conduit's plugins as options of ours: what becomes of each, what is a problem, what a warning."""

from typing import Any

import pytest
from conduit_processors import field

from conduit_py.config.conduit_settings import refuse_avro, translate
from conduit_py.config.translation import Setting, SettingDiagnostic, Translation, seconds_of
from conduit_py.pipeline_settings import RateLimit
from conduit_py.record import Payload, Record
from conduit_py.sdk import registry
from conduit_py.sdk.template import Template


def translated(kind: registry.Kind, plugin: str, settings: dict[str, str]) -> Translation:
    texts = {name: Setting(text) for name, text in settings.items()}
    return translate(kind, plugin, texts, registry.find(kind, plugin).options_model)


def options(kind: registry.Kind, plugin: str, settings: dict[str, str]) -> dict[str, Any]:
    translation = translated(kind, plugin, settings)

    assert translation.problems == []
    assert registry.find(kind, plugin)(**translation.options).problems == []
    return translation.options


def problems(kind: registry.Kind, plugin: str, settings: dict[str, str]) -> list[SettingDiagnostic]:
    return translated(kind, plugin, settings).problems


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("1s", 1.0),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("2h45m10s", 9910.0),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("5ns", 5e-9),
        ("-2s", -2.0),
        ("+2s", 2.0),
    ],
)
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "1d", "1s 2s", "-", "1.2.3s", "1e3s", "٣s", "9" * 20 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 500ms, 10s or 1m30s"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"rate": "10.5", "recordCount": "100"}, {"rate": 10.5, "count": 100}),
        ({"recordCount": "0", "rate": "0"}, {"rate": 0.0}),
        ({"burst.sleepTime": "30s"}, {"burst": {"sleep_seconds": 30.0}}),
        (
            {"burst.sleepTime": "1m", "burst.generateTime": "1500ms"},
            {"burst": {"sleep_seconds": 60.0, "generate_seconds": 1.5}},
        ),
        ({"burst.sleepTime": "0", "burst.generateTime": "1s"}, {}),
        (
            {"format.type": "structured", "format.options.id": "int", "format.options.at": "time"},
            {"format": "structured", "fields": {"id": "int", "at": "time"}},
        ),
        (
            {"format.type": "raw", "format.options": "id:int, name : string"},
            {"format": "raw", "fields": {"id": "int", "name": "string"}},
        ),
        ({"format.type": "file", "format.options.path": "a.bin"}, {"format": "file", "path": "a.bin"}),
        ({"operations": "create, update,delete"}, {"operations": ["create", "update", "delete"]}),
        (
            {
                "collections.a.b.format.type": "structured",
                "collections.a.b.format.options.id": "int",
                "collections.c.format.type": "structured",
                "collections.c.format.options.id": "int",
            },
            {
                "collections": ["a.b", "c"],
                "shapes": {name: {"format": "structured", "fields": {"id": "int"}} for name in ("a.b", "c")},
            },
        ),
        (
            {
                "format.type": "structured",
                "collections.a.format.type": "raw",
                "collections.a.operations": "create,delete",
                "collections.b.format.type": "file",
                "collections.b.format.options.path": "a.bin",
            },
            {
                "format": "structured",
                "collections": ["", "a", "b"],
                "shapes": {
                    "a": {"format": "raw", "operations": ["create", "delete"]},
                    "b": {"format": "file", "path": "a.bin"},
                },
            },
        ),
        ({"rate": "", "format.type": " "}, {}),
        # Our own options go by their own names.
        (
            {"seed": "7", "fields.id": "index", "start": "2026-01-01T00:00:00Z"},
            {"seed": "7", "fields": {"id": "index"}, "start": "2026-01-01T00:00:00Z"},
        ),
    ],
)
def test_settings_of_the_generator(settings: dict[str, str], expected: dict[str, Any]) -> None:
    assert options("source", "generator", settings) == expected


def test_the_deprecated_read_time_becomes_a_rate() -> None:
    translation = translated("source", "generator", {"readTime": "100ms"})

    assert translation.options == {"rate": 10.0}
    assert translation.warnings == [SettingDiagnostic("readTime", "is deprecated", "write rate: 10")]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rate": "fast"}, SettingDiagnostic("rate", "must be a number, 0 or more, not 'fast'")),
        ({"rate": "-1"}, SettingDiagnostic("rate", "must be a number, 0 or more, not '-1'")),
        ({"rate": "inf"}, SettingDiagnostic("rate", "must be a number, 0 or more, not 'inf'")),
        ({"recordCount": "1.5"}, SettingDiagnostic("recordCount", "must be a whole number, 0 or more, not '1.5'")),
        (
            {"burst.sleepTime": "1 second"},
            SettingDiagnostic("burst.sleepTime", "must be a duration such as 500ms, 10s or 1m30s, not '1 second'"),
        ),
        ({"burst.sleepTime": "-1s"}, SettingDiagnostic("burst.sleepTime", "must not be negative, not '-1s'")),
        (
            {"rate": "1", "readTime": "1s"},
            SettingDiagnostic("readTime", "cannot be given together with rate", "leave readTime out: it is deprecated"),
        ),
        (
            {"format.type": "xml"},
            SettingDiagnostic("format.type", "Input should be 'structured', 'raw' or 'file', not 'xml'"),
        ),
        (
            {"format.options.id": "uuid"},
            SettingDiagnostic(
                "format.options.id",
                "Input should be 'index', 'int', 'float', 'string', 'bool', 'time' or 'duration', not 'uuid'",
            ),
        ),
        (
            {"format.options": "id"},
            SettingDiagnostic(
                "format.options",
                "must be pairs such as id:int, not 'id'",
                "write format.options.NAME: TYPE for each field",
            ),
        ),
        (
            {"operations": "upsert"},
            SettingDiagnostic("operations", "Input should be 'create', 'update', 'delete' or 'snapshot', not 'upsert'"),
        ),
        ({"ratee": "1"}, SettingDiagnostic("ratee", "there is no such setting", "did you mean 'rate'?")),
        (
            {"recordcount": "1"},
            SettingDiagnostic("recordcount", "there is no such setting", "did you mean 'recordCount'?"),
        ),
        (
            {"collections.a.format.type": "raw", "collections.b.format.type": "cooked"},
            SettingDiagnostic(
                "collections.b.format.type", "Input should be 'structured', 'raw' or 'file', not 'cooked'"
            ),
        ),
    ],
)
def test_problems_in_settings_of_the_generator(settings: dict[str, str], problem: SettingDiagnostic) -> None:
    assert problems("source", "generator", settings) == [problem]


def test_all_problems_are_reported_at_once() -> None:
    found = problems("source", "generator", {"rate": "x", "recordCount": "y", "sped": "1", "seed": "z"})

    assert [remark.setting for remark in found] == ["rate", "recordCount", "sped", "seed"]


def test_the_file_source_follows_a_file_of_raw_lines_unless_set_otherwise() -> None:
    assert options("source", "file", {"path": "./in"}) == {"tail": True, "format": "lines", "path": "./in"}
    assert options("source", "file", {"path": "in", "tail": "false", "format": "json"}) == {
        "path": "in",
        "tail": "false",
        "format": "json",
    }
    assert problems("source", "file", {}) == [
        SettingDiagnostic(
            "path", "this setting is required", "add `path: …`, the file to read, or several, as in/*.csv"
        )
    ]


def test_the_file_destination_writes_whole_records_unless_set_otherwise() -> None:
    assert options("destination", "file", {"path": "out"}) == {"format": "opencdc", "path": "out"}
    assert options("destination", "file", {"path": "out", "sdk.record.format": "opencdc/json"})["format"] == "opencdc"
    assert options("destination", "file", {"path": "out", "format": "csv", "columns": "a, b"}) == {
        "path": "out",
        "format": "csv",
        "columns": ["a", "b"],
    }


def test_a_template_is_what_the_file_destination_writes() -> None:
    settings = {"path": "out", "sdk.record.format": "template", "sdk.record.format.options": "{{ .Key }}"}
    translation = translated("destination", "file", settings)

    assert translation.options == {"path": "out", "format": "lines"}
    assert translation.line == Template("{{ .Key }}")


@pytest.mark.parametrize(
    ("plugin", "settings", "problem"),
    [
        (
            "file",
            {"sdk.record.format": "debezium/json"},
            SettingDiagnostic(
                "sdk.record.format",
                "must be a supported format, not 'debezium/json'",
                "formats are opencdc/json and template",
            ),
        ),
        (
            "file",
            {"sdk.record.format": "template"},
            SettingDiagnostic("sdk.record.format", "needs a template", "add sdk.record.format.options: '{{ … }}'"),
        ),
        (
            "file",
            {"sdk.record.format": "template", "sdk.record.format.options": "{{ nope }}"},
            SettingDiagnostic("sdk.record.format.options", "there is no function 'nope', at character 4", None),
        ),
        (
            "log",
            {"sdk.record.format": "template", "sdk.record.format.options": "{{ .Key }}"},
            SettingDiagnostic(
                "sdk.record.format",
                "a template is for the file destination only, this one writes whole records",
                "leave it out",
            ),
        ),
    ],
)
def test_formats_that_would_change_the_data_are_problems(
    plugin: str, settings: dict[str, str], problem: SettingDiagnostic
) -> None:
    path = {"path": "out"} if plugin == "file" else {}
    (found,) = problems("destination", plugin, {**path, **settings})

    assert found[:2] == problem[:2]
    assert problem.suggestion is None or found.suggestion == problem.suggestion


@pytest.mark.parametrize(
    ("written", "level"),
    [("trace", "debug"), ("debug", "debug"), ("info", "info"), ("warn", "warning"), ("error", "error")],
)
def test_levels_of_the_log(written: str, level: str) -> None:
    assert options("destination", "log", {"level": written, "message": "m"}) == {"level": level, "message": "m"}


def test_a_level_that_is_none_is_a_problem() -> None:
    assert problems("destination", "log", {"level": "loud"}) == [
        SettingDiagnostic("level", "Input should be 'debug', 'info', 'warning' or 'error', not 'loud'")
    ]


def test_the_batch_size_of_a_source_is_honoured_and_its_delay_is_not() -> None:
    translation = translated("source", "generator", {"sdk.batch.size": "100", "sdk.batch.delay": "10ms"})

    assert translation.limits == {"batch_size": 100}
    assert translation.warnings == [
        SettingDiagnostic("sdk.batch.delay", "has no effect: a batch is sent as soon as it has a record")
    ]


def test_the_limits_of_a_destination_are_honoured() -> None:
    given = {"sdk.batch.size": "5", "sdk.batch.delay": "1500ms", "sdk.rate.perSecond": "20", "sdk.rate.burst": "3"}
    translation = translated("destination", "log", given)

    rate = RateLimit(records_per_second=20, burst=3)
    assert translation.limits == {"batch_size": 5, "batch_seconds": 1.5, "rate": rate}
    assert (translation.options, translation.problems, translation.warnings) == ({}, [], [])


@pytest.mark.parametrize(
    ("kind", "plugin", "settings"),
    [
        (
            "source",
            "generator",
            {
                "sdk.batch.size": "0",
                "sdk.batch.delay": "0",
                "sdk.schema.extract.type": "avro",
                "sdk.schema.extract.payload.enabled": "false",
                "sdk.schema.extract.payload.subject": "payload",
                "sdk.schema.extract.key.enabled": "true",
                "sdk.schema.extract.key.subject": "key",
                "sdk.schema.context.enabled": "true",
                "sdk.schema.context.name": "",
            },
        ),
        (
            "destination",
            "log",
            {
                "sdk.batch.size": "0",
                "sdk.batch.delay": "0",
                "sdk.rate.perSecond": "0",
                "sdk.rate.burst": "0",
                "sdk.record.format": "opencdc/json",
                "sdk.record.format.options": "",
                "sdk.schema.extract.key.enabled": "true",
                "sdk.schema.extract.payload.enabled": "true",
            },
        ),
        (
            "processor",
            "filter",
            {
                "sdk.schema.decode.key.enabled": "true",
                "sdk.schema.decode.payload.enabled": "true",
                "sdk.schema.encode.key.enabled": "true",
                "sdk.schema.encode.payload.enabled": "true",
            },
        ),
    ],
)
def test_defaults_of_the_sdk_mean_nothing_and_say_nothing(
    kind: registry.Kind, plugin: str, settings: dict[str, str]
) -> None:
    translation = translated(kind, plugin, settings)

    assert (translation.options, translation.problems, translation.warnings) == ({}, [], [])


@pytest.mark.parametrize(
    ("kind", "plugin", "setting", "value", "message"),
    [
        ("destination", "log", "sdk.rate.burst", "5", "has no effect without sdk.rate.perSecond"),
        (
            "source",
            "generator",
            "sdk.schema.context.name",
            "mine",
            "has no effect: records keep their types here without a schema",
        ),
        (
            "processor",
            "filter",
            "sdk.schema.decode.key.enabled",
            "false",
            "has no effect: records keep their types here without a schema",
        ),
    ],
)
def test_what_has_no_meaning_here_is_a_warning(
    kind: registry.Kind, plugin: str, setting: str, value: str, message: str
) -> None:
    translation = translated(kind, plugin, {setting: value})

    assert [(remark.setting, remark.message) for remark in translation.warnings] == [(setting, message)]
    assert translation.problems == []


def test_an_unknown_setting_of_the_sdk_is_a_problem() -> None:
    assert problems("destination", "log", {"sdk.batch.sise": "1"}) == [
        SettingDiagnostic("sdk.batch.sise", "there is no such setting", "did you mean 'sdk.batch.size'?")
    ]
    assert problems("processor", "filter", {"sdk.batch.size": "1"})[0].message == "there is no such setting"


@pytest.mark.parametrize(
    ("source", "destination", "refused"),
    [
        ({"format.type": "structured"}, {"sdk.schema.extract.payload.enabled": "false"}, True),
        ({}, {"sdk.schema.extract.payload.enabled": "true"}, False),
        ({"format.type": "raw"}, {"sdk.schema.extract.payload.enabled": "false"}, False),
        (
            {"sdk.schema.extract.payload.enabled": "false"},
            {"sdk.schema.extract.payload.enabled": "false"},
            False,
        ),
    ],
)
def test_a_destination_that_would_be_given_avro_is_a_problem(
    source: dict[str, str], destination: dict[str, str], refused: bool
) -> None:
    writer = translated("destination", "log", destination)
    refuse_avro([translated("source", "generator", source)], writer)

    assert [remark.setting for remark in writer.problems] == (["sdk.schema.extract.payload.enabled"] if refused else [])


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("field.set", {"field": ".Payload.After.a", "value": "b"}),
        ("field.set", {"field": ".Operation", "value": "update"}),
        ("field.set", {"field": ".Payload.After.a", "value": '{{ eq .Metadata.table "postgres" }}'}),
        ("field.convert", {"field": ".Key.id", "type": "int"}),
        ("field.exclude", {"fields": '.Metadata,.Payload.After["a,b"],.Key.key1'}),
        ("field.rename", {"mapping": ".Metadata.key1:newKey,.Payload.After.foo:newFoo"}),
        ("filter", {}),
        ("error", {"message": "because of {{.Metadata.foo}}"}),
        ("error", {"message": '{{ printf "%q is wrong" .Metadata.foo }}'}),
        ("clone", {"count": "2"}),
        ("split", {"field": ".Payload.After.users"}),
        ("base64.decode", {"field": ".Payload.After.foo"}),
        ("base64.encode", {"field": ".Payload.After.foo"}),
        ("json.decode", {"field": ".Key"}),
        ("json.encode", {"field": ".Payload.Before.foo"}),
        ("unwrap.opencdc", {}),
        ("unwrap.debezium", {"field": ".Payload.After"}),
        ("unwrap.kafkaconnect", {}),
    ],
)
def test_settings_of_processors_are_options(plugin: str, settings: dict[str, str]) -> None:
    assert set(options("processor", plugin, settings)) == set(settings)


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Payload.After.name | upper }}",
        '{{ printf "%s-%d" .Key .Payload.After.n }}',
        '{{ .Metadata["opencdc.collection"] }}',
        "{{ .payload.after.name }}",
        "{{- if .Payload.After.n -}} yes {{- else -}} no {{- end -}}",
        "{{ .Payload.After.null }}",
        "a constant",
    ],
)
def test_a_template_means_the_same_in_yaml_and_in_python(template: str) -> None:
    settings = {"field": ".Payload.After.out", "value": template}
    options = translated("processor", "field.set", settings).options
    in_yaml, in_python = field.Set(**options), field.Set(**settings)
    outcomes = []
    for processor in (in_yaml, in_python):
        processor.open()
        after = {"name": "Ada", "n": 1, "null": None}
        record = Record(metadata={"opencdc.collection": "users"}, key=b"k", payload=Payload(None, after))
        outcomes.append(processor.process(record).payload["out"])

    assert in_yaml.options == in_python.options
    assert outcomes[0] == outcomes[1]


def test_a_template_with_a_problem_is_one_of_the_setting() -> None:
    settings = {"field": ".Payload.After.a", "value": "{{ .paylod }}"}

    assert problems("processor", "field.set", settings) == [
        SettingDiagnostic(
            "value",
            "must be a template (a record has no .paylod, at character 4), not '{{ .paylod }}'",
            "did you mean 'Payload'?",
        )
    ]


def test_a_secret_is_not_quoted() -> None:
    texts = {"rate": Setting("abc", secret=True), "recordCount": Setting("abc", secret=True)}
    found = translate("source", "generator", texts, registry.find("source", "generator").options_model).problems

    assert [remark.message for remark in found] == [
        "must be a number, 0 or more",
        "must be a whole number, 0 or more",
    ]


def test_settings_that_exclude_each_other_are_a_problem_and_no_crash() -> None:
    (found,) = problems("source", "generator", {"burst": "x", "burst.sleepTime": "1s"})

    assert found.setting == "burst"
