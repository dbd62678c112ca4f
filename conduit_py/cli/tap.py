"""The command `tap`: the records of a node as they pass, with what the node changed."""

from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, TypeAlias

from rich.text import Text

from conduit_py.cli.client import connect
from conduit_py.cli.errors import Console
from conduit_py.cli.output import ExitCode, printable, put_json
from conduit_py.cli.server_commands import ServerCall
from conduit_py.client import ServerUnreachable

RecordFields: TypeAlias = dict[str, str]
"""The printed value at each path of a record."""

STYLES = {
    "changed": "bold yellow",
    "split": "bold yellow",
    "filtered": "bold magenta",
    "refused": "bold red",
    "failed": "bold red",
}


def tap(call: ServerCall, id: str, node: str, rate: int, limit: int | None, when: str | None) -> ExitCode:
    """Show records until `limit` or Ctrl-C; as JSON lines with --json."""
    given: dict[str, Any] = {"rate": rate, "limit": limit, "when": when}
    query = {name: value for name, value in given.items() if value is not None}
    console = Console()
    seen = 0
    try:
        with connect(call) as client, closing(client.stream("pipelines", id, "nodes", node, "tap", query=query)) as got:
            for name, data in got:
                seen += name == "record"
                if call.json:
                    put_json({"event": name, **data})
                elif name == "record":
                    console.print(*record_lines(data), sep="\n")
                elif name == "dropped":
                    console.print(Text(f"{data['count']} more were sampled, but not printed in time", "yellow"))
            # The server ends the stream at the limit; an end before that is a lost connection.
            if seen == limit:
                return ExitCode.OK
            raise ServerUnreachable(
                f"the server at {client.url} has ended the connection", suggestion="look at its log"
            )
    except KeyboardInterrupt:
        return ExitCode.OK


def record_lines(event: dict[str, Any]) -> list[Text]:
    """A line about the message, then its fields, or how the node changed them."""
    lines = [_headline(event), *_schema_lines(event.get("source_schema"))]
    before = None if event["before"] is None else fields_of(event["before"])
    after = [fields_of(each) for each in event["after"] or ()]
    if before is None or not after:
        for fields in after or ([before] if before is not None else []):
            lines += _whole(fields)
    elif event["outcome"] == "passed":
        lines += _whole(before)
    else:
        for number, fields in enumerate(after):
            if len(after) > 1:
                lines.append(Text(f"  piece {number}", "bold"))
            lines += differences(before, fields)
    if event["pieces"] > len(after) > 0:
        lines.append(Text(f"  and {event['pieces'] - len(after)} more pieces", "dim"))
    if event["cut"]:
        lines.append(Text(f"  too long to be shown whole: {printable(', '.join(event['cut']))}", "dim"))
    return lines


def _schema_lines(schema: dict[str, Any] | None) -> list[Text]:
    """The fields that a source announced: name, type, the type in its own system, and what else holds for it."""
    if schema is None:
        return []
    lines = [
        Text(f"  schema of {printable(schema['collection'])}, version {printable(schema['version'])}", "bold cyan")
    ]
    for field in schema["fields"]:
        # A schema that is too long ends in the middle of a field.
        marks = [field.get("native") and f"({field['native']})", field.get("key") and "key"]
        marks += ["not null"] if field.get("nullable") is False else []
        words = [f"{field.get('name', '…')}:", field.get("type", "…"), *filter(None, marks)]
        lines.append(Text(f"    {printable(' '.join(words))}", "cyan"))
    return lines


def fields_of(record: dict[str, Any]) -> RecordFields:
    """Every value of a record by its path; raw data as text where it is text."""
    fields = {"position": _raw(record["position"]), "operation": record["operation"]}
    fields |= dict(_flat("metadata", record["metadata"]))
    for path, value in (
        ("key", record["key"]),
        *((f"payload.{name}", each) for name, each in record["payload"].items()),
    ):
        if isinstance(value, str):
            fields[path] = _raw(value)
        elif value is not None:
            fields |= dict(_flat(path, value))
    return fields


def differences(before: RecordFields, after: RecordFields) -> list[Text]:
    """A line for each path at which two records differ."""
    lines = []
    for path in [*before, *(path for path in after if path not in before)]:
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if new is None:
            lines.append(Text(f"  - {path}: {old}", "red"))
        elif old is None:
            lines.append(Text(f"  + {path}: {new}", "green"))
        else:
            lines.append(Text.assemble(f"  ~ {path}: ", (old, "red"), " → ", (new, "green")))
    return lines


def _headline(event: dict[str, Any]) -> Text:
    message = event["message"]
    piece = "".join(f".{number}" for number in message["piece"])
    text = Text(f"{datetime.fromtimestamp(event['at'], UTC):%H:%M:%S.%f}"[:-3], "dim")
    text.append(f"  {printable(message['source'])} #{message['sequence']}{piece} ", "bold")
    text.append(f"at {_raw(message['position'])}  ")
    text.append(event["outcome"], STYLES.get(event["outcome"], "green"))
    if event["outcome"] == "split":
        text.append(f" into {event['pieces']}")
    if event["error"]:
        text.append(f": {printable(event['error'])}", "red")
    if event["skipped"]:
        text.append(f"  ({event['skipped']} before it not shown)", "dim")
    return text


def _whole(fields: RecordFields) -> list[Text]:
    return [Text(f"    {path}: {value}", "dim") for path, value in fields.items() if path != "position"]


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(f"{path}.{printable(name)}", each)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _flat(f"{path}[{index}]", each)
    elif value != {} or not path.startswith("metadata"):
        yield path, printable(repr(value) if isinstance(value, str) else str(value))


def _raw(base64: str) -> str:
    """Raw data as it is where it is text, else in base64."""
    try:
        text = b64decode(base64).decode()
    except ValueError:
        return f"base64 {base64}"
    return printable(text) if text else "empty"
