"""Catalogs of taps: which streams a tap has, and which of them are selected."""

import copy
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from conduit_py.sdk import FatalError


def parse_catalog(text: bytes, tap: str) -> dict[str, Any]:
    """Return the catalog that a tap printed. Some taps print other lines before it."""
    start = re.search(rb"^\s*\{", text, re.MULTILINE)
    try:
        found = msgspec.json.decode(text[start.start() :] if start else text)
        if isinstance(found, dict) and isinstance(found.get("streams"), list):
            return found
        reason = "it has no list of `streams`"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    raise FatalError(
        f"{tap} --discover printed no catalog: {reason}",
        suggestion="give the catalog as `catalog`, or `discover: false` for a tap that needs none",
    )


def select_streams(
    catalog: dict[str, Any], patterns: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a catalog with the streams selected that match a pattern and none that begins with `!`.

    `settings` has metadata for streams, by pattern, such as `replication-method`. Both forms of selection are written:
    old taps look at `selected` of a stream, others at its metadata. Fields that the tap cannot read are left out.
    """
    catalog = copy.deepcopy(catalog)
    selected = False
    for stream in catalog["streams"]:
        names = {str(stream.get(name, "")) for name in ("tap_stream_id", "stream")} - {""}
        stream["selected"] = _is_selected(names, patterns)
        selected |= stream["selected"]
        chosen = [given for pattern, given in settings.items() if _matches(names, pattern)]
        _select_fields(stream, {name: value for given in chosen for name, value in given.items()})
    if not selected:
        known = ", ".join(str(stream.get("tap_stream_id", stream.get("stream"))) for stream in catalog["streams"][:20])
        raise FatalError(f"no stream is selected; the tap has: {known or 'none'}", suggestion="check `select`")
    return catalog


def _is_selected(names: set[str], patterns: Sequence[str]) -> bool:
    left_out = any(_matches(names, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
    return not left_out and any(_matches(names, pattern) for pattern in patterns if not pattern.startswith("!"))


def _matches(names: set[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _select_fields(stream: dict[str, Any], settings: Mapping[str, Any]) -> None:
    entries: list[dict[str, Any]] = stream.setdefault("metadata", [])
    of_stream = next((each for each in entries if not each.get("breadcrumb")), None)
    if of_stream is None:
        of_stream = {"breadcrumb": [], "metadata": {}}
        entries.append(of_stream)
    of_stream["metadata"] |= {"selected": stream["selected"], **settings}
    for entry in entries:
        about = entry.setdefault("metadata", {})
        if entry is not of_stream and about.get("inclusion") != "unsupported":
            about.setdefault("selected", stream["selected"])
    # Taps that are older than metadata have these beside the schema.
    for name in ("replication-method", "replication-key"):
        if name in settings:
            stream[name.replace("-", "_")] = settings[name]
