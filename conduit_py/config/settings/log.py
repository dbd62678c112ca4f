"""Settings of Conduit's log destination."""

from typing import Final

from conduit_py.config.settings.translation import Translation

KNOWN: Final = ["level", "message"]
_LEVELS: Final = {"trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "error": "error"}


def destination(translation: Translation) -> None:
    """Go's names of levels are not Python's."""
    translation.known += KNOWN
    level = translation.take("level")
    if level is not None:
        translation.set("level", _LEVELS.get(level.lower(), level), "level")
