"""The command `version`: what a bug report needs to say."""

import platform
import sqlite3
from importlib.metadata import version

from conduit_py import __version__
from conduit_py.cli.exit_code import ExitCode
from conduit_py.cli.output import put, put_json


def show_version(*, as_json: bool) -> ExitCode:
    facts = {
        "conduit-py": __version__,
        "python": platform.python_version(),
        "trio": version("trio"),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
    }
    if as_json:
        put_json(facts)
    else:
        put(f"conduit-py {__version__}")
        put(", ".join(f"{name} {value}" for name, value in facts.items() if name != "conduit-py"))
    return ExitCode.OK
