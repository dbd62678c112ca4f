"""The page on upgrading is true: names of 0.1 are gone from where it says, and the new ones are there."""

import importlib
import inspect
import logging
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "upgrade.md").read_text()


def _rows(heading: str) -> Iterator[tuple[list[str], list[str]]]:
    """Names in both columns of each table whose first heading is this, with the module that a short name leaves out."""
    for table in re.findall(rf"^\| {heading} \| now \|\n\|---\|---\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE):
        for line in table.splitlines():
            old, new = line.strip("| ").split(" | ")
            yield _names(old), _names(new)


def _names(cell: str) -> list[str]:
    names: list[str] = []
    for name in re.findall(r"`([\w.]+)`", cell):
        if "." in name:
            names.append(name)
        elif names:
            names.append(f"{names[-1].rpartition('.')[0]}.{name}")
    return [name for name in names if name.startswith("conduit_")]


def _exists(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return False


def _has_attribute(name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    module, _, class_name = owner.rpartition(".")
    found = getattr(importlib.import_module(module), class_name)
    return hasattr(found, attribute) or re.search(rf"self\.{attribute}\b.* = ", inspect.getsource(found)) is not None


def test_names_of_0_1_do_not_import_and_the_new_ones_do() -> None:
    pytest.importorskip("pyspark")
    rows = list(_rows("0.1"))

    assert len(rows) > 35
    assert [name for old, _ in rows for name in old if _exists(name)] == []
    assert [name for _, new in rows for name in new if not _exists(name)] == []


def test_attributes_of_0_1_are_gone_and_the_new_ones_are_there() -> None:
    rows = list(_rows("attribute in 0.1"))

    assert len(rows) == 7
    assert [name for old, _ in rows for name in old if _has_attribute(name)] == []
    assert [name for _, new in rows for name in new if not _has_attribute(name)] == []


def test_loggers_are_named_as_it_says() -> None:
    pytest.importorskip("pyspark")
    for package in ("queue", "journal", "spark.session"):
        for module in pkgutil.iter_modules(importlib.import_module(f"conduit_py.{package}").__path__):
            importlib.import_module(f"conduit_py.{package}.{module.name}")
    rows = list(_rows("logger in 0.1"))
    known = {name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)}

    assert len(rows) == 4
    assert [name for old, _ in rows for name in old if name in known] == []
    assert [name for _, new in rows for name in new if name not in known] == []
