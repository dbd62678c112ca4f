"""JsonPath: where a value is in a JSON text, such as `data.items` or `$.pages[0].next`."""

import re
from typing import Any, Final, Self

from conduit_py.sdk.template import TextOption, option_error

_STEP: Final = re.compile(r"\.?([A-Za-z0-9_@$-]+)|\[(\d{1,9})\]|\[\"([^\"]*)\"\]|\['([^']*)'\]")


class JsonPath(TextOption):
    """The way from the whole of a text to one value. `$`, or an empty text, is the whole."""

    __slots__ = ("_steps", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps: list[str | int] = []
        rest = text.strip().removeprefix("$").lstrip()
        while rest:
            step = _STEP.match(rest)
            if step is None:
                raise ValueError(text)
            name, index, *quoted = step.groups()
            self._steps.append(int(index) if index is not None else next(filter(None, (name, *quoted)), ""))
            rest = rest[step.end() :]

    @classmethod
    def of(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        try:
            if isinstance(value, str):
                return cls(value)
        except ValueError:
            pass
        raise option_error("must be a path in JSON", 'write it as data.items, pages[0].next or ["a name"].list')

    def find(self, value: Any, missing: Any = None) -> Any:
        """Return the value at the path; `missing` if there is none."""
        for step in self._steps:
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step, missing)
            elif isinstance(value, list) and isinstance(step, int):
                value = value[step] if step < len(value) else missing
            else:
                return missing
        return value

    def __str__(self) -> str:
        return self.text
