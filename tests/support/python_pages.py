"""A page for each public module of Python: how each name is called or made, and what its text says.

Signatures are taken from the source, with the types as they are written there. `reference_pages.py` writes the pages.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

from conduit_py import defaults

WIDTH = 100
DEFAULT = re.compile(r"= Field\(default=([^,()]+).*\)$")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_page(module: str, origin: str) -> str:
    """The page of a module. Values of plain types, which have no text, are named only."""
    found = importlib.import_module(module)
    parts = [f"# {module}", (inspect.getdoc(found) or "").partition("\n\n")[0], origin]
    for name in sorted(found.__all__, key=str.lower):
        parts += _entry(name, getattr(found, name))
    return "\n\n".join(filter(None, parts)) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"## {name}"
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isroutine(value):
        yield _code(_called(name, _definition(value)))
        yield inspect.getdoc(value) or ""
    elif not isinstance(value, ModuleType):
        yield f"A value of type `{type(value).__name__}`."


def _class(name: str, value: type[Any]) -> Iterator[str]:
    made, fields = _constructor(value), list(_fields(value))
    if issubclass(value, Enum):
        yield _code("\n".join(f"{name}.{member.name}" for member in value))
        fields = []
    elif made is not None:
        yield _code(_called(name, made, result=False))
        fields = []
    elif fields:
        yield _code(_laid_out(name, [shown for _, shown, _ in fields]))
    yield inspect.getdoc(value) or ""
    # A list, because a table would need its signs between cells escaped in types.
    yield "\n".join(f"- `{field}`: {text}" for field, _, text in fields if text)
    yield "\n".join(f"- `{shown}`: {text}" if text else f"- `{shown}`" for shown, text in _methods(value))


def _constructor(value: type[Any]) -> Function | None:
    """What makes an object, if it is written: that of a data class follows from its fields."""
    for cls in _ours(value):
        for node in _body(cls):
            if isinstance(node, Function) and node.name == "__init__":
                return node
    return None


def _fields(value: type[Any]) -> Iterator[tuple[str, str, str]]:
    """The name of each field, how it is given, and its text."""
    seen = set()
    for cls in _ours(value):
        body = _body(cls)
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name, kind = node.target.id, ast.unparse(node.annotation)
                if not name.startswith("_") and not kind.startswith("ClassVar") and name not in seen:
                    seen.add(name)
                    yield name, DEFAULT.sub(r"= \1", ast.unparse(node)), _text(after)


def _methods(value: type[Any]) -> Iterator[tuple[str, str]]:
    seen = set()
    for cls in _ours(value):
        for node in _body(cls):
            if isinstance(node, Function) and not node.name.startswith("_") and node.name not in seen:
                seen.add(node.name)
                first = (ast.get_docstring(node) or "").partition("\n\n")[0]
                held = "property" in map(ast.unparse, node.decorator_list)
                yield node.name if held else _called(node.name, node, width=1000), " ".join(first.split())


def _ours(value: type[Any]) -> list[type[Any]]:
    return [cls for cls in value.__mro__ if cls.__module__.startswith("conduit_py")]


def _body(value: type[Any]) -> list[ast.stmt]:
    node = _definition(value)
    assert isinstance(node, ast.ClassDef), value
    return node.body


def _definition(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def _called(name: str, node: Function, *, result: bool = True, width: int = WIDTH) -> str:
    """A call with its arguments."""
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    given = [_spaced(each) for each in _split(ast.unparse(arguments))]
    returned = f" -> {ast.unparse(node.returns)}" if result and node.returns else ""
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return _laid_out(f"{awaited}{name}", given, returned, width)


def _spaced(argument: str) -> str:
    """An argument with its default as we write it, and with the value of a constant of ours."""
    name, of_type, rest = argument.partition(": ")
    kind, equals, default = rest.rpartition("=")
    shown = f"{name}{of_type}{kind} = {default}" if equals else argument
    return re.sub(r"\bdefaults\.([A-Z_]+)", lambda found: repr(getattr(defaults, found[1])), shown)


def _laid_out(name: str, arguments: list[str], returned: str = "", width: int = WIDTH) -> str:
    if len(line := f"{name}({', '.join(arguments)}){returned}") <= width:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){returned}"


def _split(given: str) -> Iterator[str]:
    """The arguments, which are divided by commas outside of brackets."""
    depth = start = 0
    if not given:
        return
    for place, letter in enumerate(given):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield given[start:place].strip()
            start = place + 1
    yield given[start:].strip()


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _code(text: str) -> str:
    return f"```py\n{text}\n```"
