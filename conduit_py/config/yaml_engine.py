"""The engine in a YAML file, which Conduit's format does not have: the keys `engine` and `spark`."""

from typing import Any, Final, get_args

from conduit_py.config.yaml_section import Section
from conduit_py.engine import Engine, EngineName, Spark
from conduit_py.sdk.options import check_options, did_you_mean

SPARK_KEYS: Final = ["master", "conf", "start-seconds"]


def read_engine(section: Section) -> Engine:
    """What a pipeline runs on: this machine unless it says otherwise."""
    name = section.text("engine")
    if name is not None and name not in _KNOWN:
        hint = did_you_mean(name.strip().lower(), list(_KNOWN))
        section.problem("engine", f"must be {' or '.join(_KNOWN)}, not {name[:40]!r}", hint)
    settings = section.section("spark", SPARK_KEYS)
    if settings is not None and name != "spark":
        section.problem("spark", "says which Spark to use, which only that engine does", "add `engine: spark`")
    if name != "spark":
        return "trio"
    return "spark" if settings is None else _read_spark(settings)


def _read_spark(section: Section) -> Engine:
    texts = {key.replace("-", "_"): section.text(key) for key in ("master", "start-seconds")}
    values: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    values["conf"] = {name: setting.text for name, setting in section.settings("conf").values.items()}
    checked, problems = check_options(Spark, values, None)
    for problem in problems:
        section.problem(problem.path.replace("_", "-"), problem.message)
    return checked if isinstance(checked, Spark) else "spark"


_KNOWN: Final[tuple[EngineName, ...]] = get_args(EngineName)
