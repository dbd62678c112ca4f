"""Random secrets in random places: no output of the process has one of them, however it is quoted."""

import base64
import json
import logging
import sys
from collections.abc import Callable
from urllib.parse import quote

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, SecretStr

from conduit_py import Record, sdk
from conduit_py.batch import MessageId
from conduit_py.cli.output import JsonLogFormatter, TextLogFormatter, json_text, shown
from conduit_py.dead_letter import DeadLetter, Failure
from conduit_py.inspect.record_view import view_record
from conduit_py.redaction import redact
from conduit_py.sdk.destination import refusal_text
from conduit_py.status import LastError
from conduit_py.store.letter_codec import decode_dead_letter, encode_content, encode_dead_letter
from conduit_py.store.stored_letter import StoredLetter
from conduit_py.wire_error import WireError


class VaultOptions(sdk.Options):
    password: SecretStr | None = None
    url: str = ""
    conf: dict[str, str] = Field(default={})
    nested: list[dict[str, SecretStr]] = Field(default=[])


class Vault(sdk.DestinationConnector[VaultOptions]):
    """Has secrets, and does nothing."""

    def write(self, batch: sdk.Batch) -> None:
        return


PLACES: dict[str, Callable[[str], Vault]] = {
    "an option": lambda secret: Vault(password=secret),
    "a URL": lambda secret: Vault(url=f"vault://app:{quote(secret, safe='')}@host:5432/db?x=1"),
    "a parameter of a URL": lambda secret: Vault(url=f"sc://host:443/;token={quote(secret, safe='')};x=1"),
    "a setting": lambda secret: Vault(conf={"spark.hadoop.fs.s3a.secret.key": secret}),
    "a list": lambda secret: Vault(nested=[{"key": SecretStr(secret)}]),
    "an option with a problem": lambda secret: Vault(password=secret, url=5),
}

QUOTES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in a repr": lambda text: repr(f"say \"{text}\" or 'it'"),
    "in JSON": json.dumps,
    "in JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "in a URL": lambda text: quote(text, safe=""),
    "in base64": lambda text: base64.b64encode(f"u:{text}:x".encode()).decode(),
    "in bytes": lambda text: repr(text.encode()),
}

# Without letters that the texts around them are made of, so that what is found is the secret.
secrets = st.text(
    st.characters(codec="utf-8", exclude_characters="*xu\x00", exclude_categories=("Zs", "Cc")), min_size=8
)
around = st.text("xyz \n'\"", max_size=40)


def outputs_of(text: str) -> dict[str, str]:
    """What leaves the process when a plugin raises an error with this text, about a record that has it too."""
    error: Exception
    try:
        raise sdk.RecordRefused(text, suggestion=text)
    except sdk.RecordRefused as raised:
        error = raised
        entry = logging.LogRecord("conduit_py", logging.ERROR, "", 0, "%s", (text,), sys.exc_info())
    record = Record.of({"text": text, text: [text]}, key=text.encode())
    record.metadata["a"] = text
    failure = Failure("out", refusal_text(error))
    letter = DeadLetter("p", MessageId("in", 1), b"1", Record.of(b""), [failure])
    stored = StoredLetter.of(decode_dead_letter(encode_dead_letter(letter)))
    views = [view_record(record, size, redact).value for size in (0, len(text), len(text) + 20, 10_000)]
    return {
        "text log": TextLogFormatter().format(entry),
        "JSON log": JsonLogFormatter().format(entry),
        "screen": shown(text),
        "JSON": json_text({"error": text}),
        "wire": repr(WireError.of(error)),
        "status": repr(LastError.of(error)),
        "letter": stored.error,
        "cause": stored.cause,
        "store": encode_content(stored).decode("latin-1"),
        "letter to a destination": repr(letter.to_record()),
        "records": json.dumps(views, ensure_ascii=False),
        "keys of records": base64.b64decode(views[-1]["key"]).decode(errors="replace"),
    }


@settings(max_examples=60)
@given(st.sampled_from(sorted(PLACES)), st.sampled_from(sorted(QUOTES)), secrets, around, around)
def test_no_output_has_a_secret_in_it(place: str, quoted: str, secret: str, before: str, after: str) -> None:
    # What is in an output without any secret, such as the name of a field, is none.
    assume(not any(secret in output for output in outputs_of("xyz").values()))
    vault = PLACES[place](secret)
    text = before + QUOTES[quoted](secret) + after
    outputs = outputs_of(text) | {"problems": repr(vault.problems)}

    forms = {secret, QUOTES[quoted](secret), json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    assert [name for name, output in outputs.items() for form in forms if form in output] == []


@settings(max_examples=30)
@given(
    secret=st.text("abcdefgh0123456789", min_size=12, max_size=60),
    room=st.integers(0, 60_000),
    count=st.integers(1, 900),
)
def test_a_cut_shows_no_part_of_a_secret(secret: str, room: int, count: int) -> None:
    Vault(password=secret)
    view = view_record(Record.of({"t": f"{secret}---" * count}), room, redact).value

    shown_text = view["payload"]["after"].get("t", "")
    assert secret[:4] not in shown_text
    assert set(shown_text) <= {"*", "-"}
