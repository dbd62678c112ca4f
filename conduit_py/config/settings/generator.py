"""Settings of Conduit's generator."""

from typing import Final

from conduit_py.config.settings.translation import Translation

KNOWN: Final = [
    *("rate", "recordCount", "readTime", "burst.sleepTime", "burst.generateTime"),
    *("format.type", "format.options", "format.options.path", "operations"),
]


def source(translation: Translation) -> None:
    """Ours goes on where it ended, whereas Conduit's begins anew, and `recordCount` ends it instead of waiting."""
    translation.known += KNOWN
    _pace(translation)
    count = translation.take_number("recordCount", whole=True)
    if count:
        translation.set("count", int(count), "recordCount")
    _shape(translation, "", ())
    _collections(translation)
    shapes = translation.options.get("shapes", {}).values() or [translation.options]
    translation.structured = any(shape.get("format", "structured") == "structured" for shape in shapes)


def _pace(translation: Translation) -> None:
    rate, read_time = translation.take_number("rate"), translation.take_seconds("readTime")
    if rate and read_time:
        translation.problem("readTime", "cannot be given together with rate", "leave readTime out: it is deprecated")
    elif read_time:
        translation.warn("readTime", "is deprecated", f"write rate: {1 / read_time:g}")
        translation.set("rate", 1 / read_time, "readTime")
    elif rate is not None:
        translation.set("rate", rate, "rate")
    sleep, generate = translation.take_seconds("burst.sleepTime"), translation.take_seconds("burst.generateTime")
    if sleep:
        translation.set(("burst", "sleep_seconds"), sleep, "burst.sleepTime")
        if generate is not None:
            translation.set(("burst", "generate_seconds"), generate, "burst.generateTime")


def _shape(translation: Translation, prefix: str, into: tuple[str, ...]) -> None:
    """Set what records of one collection look like."""
    operations = translation.take(f"{prefix}operations")
    if operations is not None:
        chosen = [operation.strip() for operation in operations.split(",")]
        translation.set((*into, "operations"), chosen, f"{prefix}operations")
    format = translation.take(f"{prefix}format.type")
    if format is not None:
        translation.set((*into, "format"), format, f"{prefix}format.type")
    if format == "file":
        path = translation.take(f"{prefix}format.options.path")
        if path is None:
            translation.problem(f"{prefix}format.type", "needs a file", f"add {prefix}format.options.path")
        else:
            translation.set((*into, "path"), path, f"{prefix}format.options.path")
    _fields(translation, prefix, into)


def _fields(translation: Translation, prefix: str, into: tuple[str, ...]) -> None:
    for name, kind in translation.take_below(f"{prefix}format.options.").items():
        translation.set((*into, "fields", name), kind.strip().lower(), f"{prefix}format.options.{name}")
    # How Conduit had it before 2024, and its documentation still has it in places.
    pairs = translation.take(f"{prefix}format.options")
    for pair in pairs.split(",") if pairs else []:
        name, colon, kind = pair.partition(":")
        if not colon:
            hint = f"write {prefix}format.options.NAME: TYPE for each field"
            translation.problem(f"{prefix}format.options", f"must be pairs such as id:int, not {pair!r}", hint)
            return
        translation.set((*into, "fields", name.strip()), kind.strip().lower(), f"{prefix}format.options")


def _collections(translation: Translation) -> None:
    names = list(dict.fromkeys(_collection_of(name) for name in translation.rest if _collection_of(name)))
    if not names:
        return
    origin = next(name for name in translation.rest if _collection_of(name))
    # A format outside of them is that of records without a collection, which take their turn as well.
    unnamed = [""] if "format" in translation.options else []
    for name in names:
        _shape(translation, f"collections.{name}.", ("shapes", name))
    translation.set("collections", unnamed + names, origin)


def _collection_of(setting: str) -> str:
    """The name between `collections.` and the part of it that is set, which may have dots of its own."""
    if not setting.startswith("collections."):
        return ""
    inner = setting.removeprefix("collections.")
    ends = [inner.rfind(f".{part}") for part in ("operations", "format.type")]
    ends.append(inner.find(".format.options"))
    return next((inner[:end] for end in ends if end > 0), "")
