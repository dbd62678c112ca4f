"""Parser: the tree of a template. Reports every error that can be found without a record."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from conduit_py.sdk.plugin import did_you_mean
from conduit_py.sdk.template.functions import FUNCTIONS, Function
from conduit_py.sdk.template.lexer import Action, TemplateInvalid, Text, Token, split, tokens

# Expressions are parsed and compiled recursively, and a template from a file must not exhaust the stack.
DEPTH_MAX: Final = 50


@dataclass(frozen=True)
class Literal:
    """A literal value."""

    value: str | int | float | bool | None
    offset: int


@dataclass(frozen=True)
class Field:
    """A field of the record: the names after the dots; no names for the record itself."""

    names: tuple[str, ...]
    offset: int


@dataclass(frozen=True)
class Chain:
    """Fields of the value of an expression in parentheses."""

    inner: "Expression"
    names: tuple[str, ...]
    offset: int


@dataclass(frozen=True)
class FunctionCall:
    """A function and its arguments; a value from a pipe is the last of them."""

    function: Function
    arguments: "tuple[Expression, ...]"
    offset: int


Expression: TypeAlias = Literal | Field | Chain | FunctionCall


@dataclass
class Branch:
    """`if` with its `else if` and `else`: renders the first block whose condition is true, or that has none."""

    choices: "list[tuple[Expression | None, list[Part]]]" = field(default_factory=list)


Part: TypeAlias = Text | Expression | Branch


def parse(template: str) -> list[Part]:
    """The parts of a template in order; raises TemplateInvalid."""
    return _Blocks(split(template)).read()


class _Blocks:
    """Groups text and actions into the blocks of `if`, `else` and `end`."""

    def __init__(self, pieces: Sequence[Text | Action]) -> None:
        self._pieces = pieces

    def read(self) -> list[Part]:
        parts: list[Part] = []
        # The parts being filled, and for all but the outermost the `if` that they belong to.
        open_parts = [parts]
        open_ifs: list[tuple[Branch, Action]] = []
        for piece in self._pieces:
            if isinstance(piece, Text):
                open_parts[-1].append(piece)
                continue
            command = _Command(piece)
            keyword = command.keyword()
            if keyword is None:
                open_parts[-1].append(command.expression())
            elif keyword == "if":
                if len(open_ifs) == DEPTH_MAX:
                    raise TemplateInvalid("ifs are nested too deeply", piece.offset)
                branch = Branch([(command.expression(), [])])
                open_parts[-1].append(branch)
                open_ifs.append((branch, piece))
                open_parts.append(branch.choices[-1][1])
            else:
                self._continue(keyword, command, piece, open_ifs, open_parts)
        if open_ifs:
            raise TemplateInvalid("this if has no end", open_ifs[-1][1].offset, "add {{ end }}")
        return parts

    def _continue(
        self,
        keyword: str,
        command: "_Command",
        piece: Action,
        open_ifs: list[tuple[Branch, Action]],
        open_parts: list[list[Part]],
    ) -> None:
        if not open_ifs:
            raise TemplateInvalid(f"this {keyword} has no if", piece.offset)
        branch = open_ifs[-1][0]
        open_parts.pop()
        if keyword == "end":
            command.nothing_more()
            open_ifs.pop()
            return
        if branch.choices[-1][0] is None:
            raise TemplateInvalid("there is an else already", piece.offset)
        branch.choices.append((command.condition_of_else(), []))
        open_parts.append(branch.choices[-1][1])


class _Command:
    """Reads one action: an optional keyword, then a pipeline."""

    def __init__(self, action: Action) -> None:
        self._tokens = list(tokens(action))
        self._at = 0
        self._depth = 0
        self._start = action.offset

    def keyword(self) -> str | None:
        token = self._tokens[0]
        if token.kind != "name" or token.value not in _KEYWORDS:
            return None
        if token.value not in ("if", "else", "end"):
            hint = "templates have if, else and end, functions and pipes"
            raise TemplateInvalid(f"{token.value} is not supported", token.offset, hint)
        self._at += 1
        return str(token.value)

    def condition_of_else(self) -> Expression | None:
        """What follows `else`: nothing, or `if` and a condition."""
        if self._next.kind == "end":
            return None
        if self._next.value != "if":
            raise self._unexpected_token()
        self._at += 1
        return self.expression()

    def nothing_more(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected_token()

    def expression(self) -> Expression:
        result = self._pipeline()
        self.nothing_more()
        return result

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _pipeline(self) -> Expression:
        result = self._call(None)
        while self._next.value == "|" and self._next.kind == "symbol":
            self._at += 1
            result = self._call(result)
        return result

    def _call(self, piped: Expression | None) -> Expression:
        """One step of a pipeline: a function with its arguments, or a value alone."""
        token = self._next
        if token.kind == "name" and token.value not in _WORDS:
            function = _function(self._take())
            arguments = self._operands()
            if piped is not None:
                arguments.append(piped)
            _check_count(function, len(arguments), token.offset)
            return FunctionCall(function, tuple(arguments), token.offset)
        operand = self._operand()
        if piped is not None:
            raise TemplateInvalid("what follows a | must be a function", token.offset)
        if not self._at_end_of_step():
            hint = 'a function comes first: eq .Metadata.a "b"'
            raise TemplateInvalid("this is not a function, so it takes no arguments", token.offset, hint)
        return operand

    def _operands(self) -> list[Expression]:
        operands = []
        while not self._at_end_of_step():
            operands.append(self._operand())
        return operands

    def _at_end_of_step(self) -> bool:
        token = self._next
        return token.kind == "end" or (token.kind == "symbol" and token.value in ("|", ")"))

    def _operand(self) -> Expression:
        token = self._next
        if token.kind in ("string", "number"):
            self._at += 1
            return Literal(token.value, token.offset)
        if token.kind == "name":
            return self._word()
        if token.kind == "field":
            return Field(self._names(), token.offset)
        if token.kind == "variable":
            return self._root()
        if token.value == "(":
            return self._parenthesis()
        raise self._unexpected_token()

    def _word(self) -> Expression:
        """true, false, nil, or a function without arguments among the arguments of another."""
        token = self._take()
        if token.value in _WORDS:
            return Literal(_WORDS[str(token.value)], token.offset)
        function = _function(token)
        _check_count(function, 0, token.offset)
        return FunctionCall(function, (), token.offset)

    def _root(self) -> Expression:
        token = self._take()
        if token.value != "$":
            raise TemplateInvalid(f"templates have no variables, so {token.value} means nothing", token.offset)
        return Field(self._names(joined=True), token.offset)

    def _parenthesis(self) -> Expression:
        token = self._take()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise TemplateInvalid("parentheses are nested too deeply", token.offset)
        inner = self._pipeline()
        if self._next.value != ")" or self._next.kind != "symbol":
            raise (
                TemplateInvalid("this ( has no )", token.offset)
                if self._next.kind == "end"
                else self._unexpected_token()
            )
        self._at += 1
        self._depth -= 1
        names = self._names(joined=True)
        return Chain(inner, names, token.offset) if names else inner

    def _names(self, *, joined: bool = False) -> tuple[str, ...]:
        """The names of fields that follow each other without a blank."""
        names: list[str] = []
        while self._continues_a_path(first=not joined and not names):
            token = self._take()
            if token.kind == "subscript":
                names.append(str(token.value))
                continue
            name = str(token.value)[1:]
            if not name and (names or joined or not self._ends_a_field()):
                raise TemplateInvalid("a name must follow this dot", token.offset)
            if not name:
                return ()
            names.append(name)
        return tuple(names)

    def _continues_a_path(self, *, first: bool) -> bool:
        if first:
            return self._next.kind == "field"
        return self._next.kind in ("field", "subscript") and not self._next.spaced

    def _ends_a_field(self) -> bool:
        return self._next.spaced or self._next.kind in ("end", "symbol")

    def _unexpected_token(self) -> TemplateInvalid:
        token = self._next
        if token.kind == "end":
            return TemplateInvalid("something is missing here", token.offset)
        return TemplateInvalid(f"{str(token.value)!r} means nothing here", token.offset)


_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "nil": None}
_KEYWORDS: Final = {
    *("if", "else", "end", "with", "range", "define", "template", "block", "break", "continue"),
}


def _function(token: Token) -> Function:
    function = FUNCTIONS.get(str(token.value))
    if function is None:
        known = sorted(FUNCTIONS)
        fields = f"a field begins with a dot, as in .Payload.After.{token.value}; functions are {', '.join(known)}"
        hint = did_you_mean(str(token.value), known) or fields
        raise TemplateInvalid(f"there is no function {token.value!r}", token.offset, hint)
    return function


def _check_count(function: Function, count: int, offset: int) -> None:
    if count < function.least or (function.most is not None and count > function.most):
        raise TemplateInvalid(f"{function.name} takes {function.takes}, not {count}", offset)
