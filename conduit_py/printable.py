r"""Text that a terminal or a log shows as it is: what could steer it is written out, as `\x1b`.

Records, clients and other programs decide what errors quote. An escape sequence could rename a terminal or clear it, a
control of text direction show a name backwards, a line break write a line that looks like ours.
"""

import json
import re
import unicodedata


def printable(text: str) -> str:
    r"""Return the text in one line, with every other character that is not visible written out, as `\n`."""
    return text if text.isprintable() else _SUSPECT.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return the same for text of several lines: line feeds and tabs stay."""
    return _SUSPECT_IN_LINES.sub(_escape, text)


def printable_json(text: str) -> str:
    r"""Return JSON text that means the same, with what is not visible written out in JSON's own way, as `\u009b`."""
    # Outside of its strings, JSON has no such character but line feeds.
    return _SUSPECT_IN_LINES.sub(_escape_json, text)


def _escape(found: re.Match[str]) -> str:
    return "".join(each if _visible(each) else ascii(each)[1:-1] for each in found.group())


def _escape_json(found: re.Match[str]) -> str:
    return "".join(each if _visible(each) else json.dumps(each)[1:-1] for each in found.group())


def _visible(character: str) -> bool:
    # Spaces of other scripts do no harm, and `isprintable` is true for none but " ".
    return character.isprintable() or unicodedata.category(character) == "Zs"


_SUSPECT = re.compile(r"[^ -~]+")
_SUSPECT_IN_LINES = re.compile(r"[^ -~\n\t]+")
"""Everything beyond ASCII is looked at one by one; most text has little of it."""
