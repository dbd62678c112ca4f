"""Translation: the settings of one plugin on their way to its options, checked against the plugin's model.

What Conduit's plugins and ours have in common; what differs is in `conduit_settings`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conduit_py.sdk.plugin import Options, did_you_mean
from conduit_py.sdk.template import Template

OptionPath = tuple[str, ...]


class Setting(NamedTuple):
    """The text of a setting; a secret one must not be quoted."""

    text: str
    secret: bool = False


class SettingDiagnostic(NamedTuple):
    """A problem or warning about one setting."""

    setting: str
    message: str
    suggestion: str | None = None


class Translation:
    """Collects options, problems and warnings from the settings of one plugin.

    Each translator takes the settings that it handles; `rest` has those that are left. An empty setting
    counts as missing, as in Conduit.
    """

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        self.settings = {name: setting for name, setting in settings.items() if setting.text.strip()}
        # A copy: `settings` stays whole for messages that quote a value already taken.
        self.rest = dict(self.settings)
        self.known: list[str] = []
        """The settings that Conduit has for this plugin, for suggestions."""
        self.options: dict[str, Any] = {}
        self.limits: dict[str, Any] = {}
        """The settings of the node that Conduit has among those of the plugin, by name."""
        self.line: Template | None = None
        """The template that a destination writes for each record instead of the record."""
        self.structured = False
        """Whether it is a source whose payloads Conduit would encode in Avro."""
        self.switches: dict[str, bool] = {}
        """The settings of Conduit's SDK that enable something."""
        self.problems: list[SettingDiagnostic] = []
        self.warnings: list[SettingDiagnostic] = []
        self._origins: dict[OptionPath, str] = {}

    def take(self, name: str) -> str | None:
        """The text of a setting, which is no longer in `rest`."""
        setting = self.rest.pop(name, None)
        return setting.text if setting else None

    def take_below(self, prefix: str) -> dict[str, str]:
        """The settings whose names begin with `prefix`, by the rest of their names."""
        names = [name for name in self.rest if name.startswith(prefix) and len(name) > len(prefix)]
        return {name.removeprefix(prefix): self.rest.pop(name).text for name in names}

    def take_number(self, name: str, *, whole: bool = False) -> float | None:
        text = self.take(name)
        if text is None:
            return None
        try:
            number = int(text) if whole else float(text)
        except ValueError:
            number = math.nan
        # float() accepts nan and inf, and nan is below nothing.
        if not math.isfinite(number) or number < 0:
            kind = "a whole number" if whole else "a number"
            self.problem(name, f"must be {kind}, 0 or more{self.quote(name)}")
            return None
        return number

    def take_seconds(self, name: str) -> float | None:
        text = self.take(name)
        if text is None:
            return None
        try:
            seconds = seconds_of(text)
        except ValueError as error:
            self.problem(name, f"{error}{self.quote(name)}")
            return None
        if seconds < 0:
            self.problem(name, f"must not be negative{self.quote(name)}")
            return None
        return seconds

    def take_boolean(self, name: str) -> bool | None:
        text = self.take(name)
        if text is None:
            return None
        if text.lower() not in ("true", "false", "t", "f", "1", "0"):
            self.problem(name, f"must be true or false{self.quote(name)}")
            return None
        return text.lower() in ("true", "t", "1")

    def set(self, path: OptionPath | str, value: Any, origin: str) -> None:
        """Set an option, which may be inside another, and remember the setting it comes from."""
        path = (path,) if isinstance(path, str) else path
        target = self.options
        for name in path[:-1]:
            inner = target.setdefault(name, {})
            if not isinstance(inner, dict):
                self.problem(origin, f"cannot be combined with {self.origin((name,))}")
                return
            target = inner
        target[path[-1]] = value
        self._origins[path] = origin

    def origin(self, path: tuple[str | int, ...]) -> str:
        """The setting that an option comes from, else the option's own name."""
        names = tuple(map(str, path))
        for length in range(len(names), 0, -1):
            inside = [origin for known, origin in self._origins.items() if known[:length] == names[:length]]
            if inside:
                return self._origins.get(names[:length], inside[0])
        return ".".join(names)

    def quote(self, name: str) -> str:
        """The value of a setting as the end of a message about it; nothing for a secret."""
        setting = self.settings.get(name)
        return "" if setting is None or setting.secret else f", not {setting.text[:80]!r}"

    def problem(self, setting: str, message: str, suggestion: str | None = None) -> None:
        self.problems.append(SettingDiagnostic(setting, message, suggestion))

    def warn(self, setting: str, message: str, suggestion: str | None = None) -> None:
        self.warnings.append(SettingDiagnostic(setting, message, suggestion))


def adopt_options(translation: Translation, model: type[Options]) -> None:
    """Take the settings that are options of the plugin, report the others as unknown, and check all options.

    Text is converted to the type of the option: a number, a boolean, a list from text with commas, seconds
    from a duration such as 1m30s. The entries of a list of objects are numbered: `references.0.name`.
    """
    for name in list(translation.rest):
        head, _, inner = name.partition(".")
        if name in model.model_fields:
            translation.set(name, translation.take(name), name)
        elif inner and head in model.model_fields:
            translation.set(_inner_path(model, head, inner), translation.take(name), name)
        else:
            _unknown(translation, name, [*translation.known, *model.model_fields])
    for error in _errors(model, translation.options):
        _report(translation, model, error)


def _inner_path(model: type[Options], head: str, inner: str) -> OptionPath:
    """The path of an option inside of another: in a list, a number comes first; in a mapping, dots are of the name."""
    number, _, rest = inner.partition(".")
    in_list = get_origin(model.model_fields[head].annotation) in (list, tuple)
    return (head, number, rest) if in_list and rest and number.isdecimal() else (head, inner)


def _unknown(translation: Translation, name: str, known: list[str]) -> None:
    translation.take(name)
    names = sorted(set(known))
    # Conduit's SDK adds many to every plugin, and they are seldom the right ones.
    shown = [each for each in names if not each.startswith("sdk.")]
    listed = f"settings are {', '.join(shown)}" if shown else "it takes none"
    translation.problem(name, "there is no such setting", did_you_mean(name, names) or listed)


def _errors(model: type[Options], options: dict[str, Any]) -> list[ErrorDetails]:
    errors = _validation_errors(model, options)
    converted = [_convert_text(options, error) for error in errors]
    # Checked again: what was converted may still be out of range.
    return _validation_errors(model, options) if any(converted) else errors


def _validation_errors(model: type[Options], options: Mapping[str, Any]) -> list[ErrorDetails]:
    try:
        model(**options)
    except ValidationError as invalid:
        return invalid.errors(include_url=False)
    return []


def _convert_text(options: dict[str, Any], error: ErrorDetails) -> bool:
    """Convert what pydantic could not: a list with commas, a list whose entries are numbered, or a duration."""
    if len(error["loc"]) != 1:
        return False
    name = str(error["loc"][0])
    text = options.get(name)
    is_list = error["type"] in ("list_type", "tuple_type")
    # Numbers without a gap: an entry that is not written must not vanish.
    if is_list and isinstance(text, dict) and text.keys() == {str(number) for number in range(len(text))}:
        options[name] = [text[str(number)] for number in range(len(text))]
        return True
    if not isinstance(text, str):
        return False
    if is_list:
        options[name] = [part.strip() for part in text.split(",")]
        return True
    if error["type"] == "float_parsing" and name.endswith("_seconds"):
        try:
            options[name] = seconds_of(text)
        except ValueError:
            return False
        return True
    return False


def _report(translation: Translation, model: type[Options], error: ErrorDetails) -> None:
    """Report an error of pydantic about an option as a problem of the setting that it comes from."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    setting = translation.origin(path)
    if any(found.setting == setting for found in translation.problems):
        return  # A setting that could not be read seems missing as well; one problem is enough.
    if error["type"] == "missing" and len(path) == 1:
        description = model.model_fields[str(path[0])].description
        hint = f"add `{setting}: …`" + (f", {description}" if description else "")
        translation.problem(setting, "this setting is required", hint)
    elif error["type"] in ("list_type", "tuple_type") and isinstance(translation.options.get(str(path[0])), dict):
        hint = f"write `{path[0]}.0.NAME: …`, then `{path[0]}.1.NAME: …`"
        translation.problem(setting, "is in a list, whose entries are numbered from 0 without a gap", hint)
    else:
        suggestion = error.get("ctx", {}).get("suggestion")
        translation.problem(setting, f"{error['msg']}{translation.quote(setting)}", suggestion)


EXAMPLES: Final = "such as 500ms, 10s or 1m30s"


def seconds_of(text: str) -> float:
    """The seconds of a duration as Go writes it; raises ValueError for anything else."""
    text = text.strip()
    if text in ("0", "+0", "-0"):
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f"must be a duration {EXAMPLES}")
    total = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


_AMOUNT = r"(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})"
_UNIT = "ns|us|µs|μs|ms|s|m|h"
_PART = re.compile(f"({_AMOUNT})({_UNIT})")
_DURATION = re.compile(f"[+-]?(?:{_AMOUNT}(?:{_UNIT}))+")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
