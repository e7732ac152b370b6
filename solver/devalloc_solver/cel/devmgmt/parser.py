"""From text to a syntax tree, by recursive descent; linear in the length, bounded in depth.

The parsers of the CEL packages for Python cost 100 to 200 ms to import and build, are shared by the whole process, take
``'\\'`` for a whole string and cannot read ``r'\\'``; the grammar of CEL is a page.
"""

from __future__ import annotations

from typing import NoReturn

from devalloc_solver.cel.devmgmt.lexer import Token, error_at, tokenize
from devalloc_solver.cel.devmgmt.syntax_tree import (
    Binary,
    Call,
    Conditional,
    Index,
    ListOf,
    Literal,
    Logical,
    Macro,
    MapOf,
    Name,
    Node,
    Select,
    Unary,
)
from devalloc_solver.cel.devmgmt.values import MAX_INT, MIN_INT, shorten
from devalloc_solver.cel.errors import CompileError

MAX_LENGTH = 10 * 1024
"""Bytes of UTF-8 of an expression."""
MAX_DEPTH = 100
"""Levels of a syntax tree: what nests, and what chains such as ``a + b + c`` (chains of && or || are one level)."""

_WORDS: dict[str, object] = {"true": True, "false": False, "null": None}
_KEYWORDS = frozenset({*_WORDS, "in"})
_RESERVED = frozenset(
    word
    for line in (
        "as break const continue else for function if import let loop",
        "package namespace return var void while",
    )
    for word in line.split()
)
_HINTS = {"and": "; write && for and", "or": "; write || for or"}
_LOGICAL = ("||", "&&")
_BINDING = {
    operator: level
    for level, operators in enumerate(("||", "&&", "== != < <= > >= in", "+ -", "* / %"), start=1)
    for operator in operators.split()
}
MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "filter": (2,), "map": (2, 3)}
"""Macro name to the numbers of its arguments."""


def parse(text: str) -> Node:
    """The syntax tree of ``text``. Raises CompileError."""
    length = len(text.encode("utf-8", "surrogatepass"))
    if length > MAX_LENGTH:
        raise CompileError(f"the expression has {length} bytes; at most {MAX_LENGTH} are allowed")
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.position = 0
        self.nesting = 0

    def parse(self) -> Node:
        tree = self.expression()
        if self.token.kind != "end":
            self.unexpected("an operator or the end")
        return tree

    # -- tokens ------------------------------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def advance(self) -> Token:
        token = self.tokens[self.position]
        self.position += 1
        return token

    def accept(self, symbol: str) -> bool:
        if self.token.kind == "symbol" and self.token.text == symbol:
            self.position += 1
            return True
        return False

    def expect(self, symbol: str) -> None:
        if not self.accept(symbol):
            self.unexpected(repr(symbol))

    def unexpected(self, wanted: str) -> NoReturn:
        token = self.token
        actual = shorten(token.text)
        hint = _HINTS.get(token.text, "") if token.kind == "name" else ""
        raise error_at(self.text, token.at, f"found {actual} where {wanted} is expected{hint}")

    def bounded(self, node: Node) -> Node:
        if node.depth > MAX_DEPTH:
            raise self.too_deep(node.at)
        return node

    def too_deep(self, at: int) -> CompileError:
        return error_at(self.text, at, f"the expression nests more than {MAX_DEPTH} levels deep")

    # -- grammar -----------------------------------------------------------------------------------------------------

    def expression(self) -> Node:
        node = self.operation(1)
        at = self.token.at
        if self.accept("?"):
            then = self.operation(1)
            self.expect(":")
            node = self.bounded(Conditional(at, node, then, self.expression()))
        return node

    def operation(self, least: int) -> Node:
        """Operands joined by binary operators that bind at least as tight as ``least``."""
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise self.too_deep(self.token.at)
        node = self.unary()
        while (level := self.binding()) >= least:
            operator = self.advance()
            right = self.operation(level + 1)
            if operator.text in _LOGICAL:
                operands = [node, right]
                while self.accept(operator.text):
                    operands.append(self.operation(level + 1))
                node = Logical(operator.at, operator.text, tuple(operands))
            else:
                node = Binary(operator.at, operator.text, node, right)
            self.bounded(node)
        self.nesting -= 1
        return node

    def binding(self) -> int:
        """How tight the operator at the current token binds; 0 when it is none."""
        return _BINDING.get(self.token.text, 0) if self.token.kind in ("symbol", "name") else 0

    def unary(self) -> Node:
        operators: list[Token] = []
        while self.token.kind == "symbol" and self.token.text in ("!", "-"):
            operators.append(self.advance())
        if operators and operators[-1].text == "-" and isinstance(self.token.value, int | float):
            node = self.postfix(self.literal(operators.pop()))
        else:
            node = self.postfix(self.primary())
        for operator in reversed(operators):
            node = self.bounded(Unary(operator.at, operator.text, node))
        return node

    def postfix(self, node: Node) -> Node:
        while self.token.kind == "symbol":
            at = self.token.at
            if self.accept("."):
                at = self.token.at
                field = self.name("the name of a field or method", _KEYWORDS)
                if self.accept("("):
                    args = self.sequence(")")
                    node = self.macro(at, field, node, args) if field in MACROS else Call(at, field, node, args)
                else:
                    node = Select(at, node, field)
            elif self.accept("["):
                key = self.expression()
                self.expect("]")
                node = Index(at, node, key)
            elif self.token.text == "{" and isinstance(node, Name | Select):
                raise error_at(self.text, at, "message types are not part of this dialect")
            else:
                break
            self.bounded(node)
        return node

    def primary(self) -> Node:
        token = self.token
        if token.kind == "literal":
            return self.literal(None)
        if token.kind == "name":
            if token.text in _WORDS:
                self.advance()
                return Literal(token.at, _WORDS[token.text])
            return self.identifier(token.at, "")
        if self.accept("."):
            return self.identifier(token.at, ".")
        if self.accept("("):
            node = self.expression()
            self.expect(")")
            return node
        if self.accept("["):
            return self.bounded(ListOf(token.at, self.sequence("]")))
        if self.accept("{"):
            return self.bounded(MapOf(token.at, self.entries()))
        self.unexpected("a value")

    def literal(self, minus: Token | None) -> Node:
        token = self.advance()
        if minus is None:
            if token.negatable:
                raise error_at(self.text, token.at, f"{token.text} is beyond the range of a 64-bit integer")
            return Literal(token.at, token.value)
        value = token.value
        assert isinstance(value, int | float)
        if type(value) is int:
            return Literal(minus.at, MIN_INT if value == MAX_INT + 1 else -value)
        if type(value) is float:
            return Literal(minus.at, -value)
        raise error_at(self.text, minus.at, f"an unsigned integer has no negative: -{token.text}")

    def identifier(self, at: int, dot: str) -> Node:
        name = self.name("a name", _KEYWORDS | _RESERVED)
        if not self.accept("("):
            return Name(at, dot + name)
        args = self.sequence(")")
        if name != "has" or dot:
            return self.bounded(Call(at, name, None, args))
        if len(args) != 1 or not isinstance(args[0], Select):
            raise error_at(self.text, at, "has() takes one field, such as has(device.model)")
        return Select(at, args[0].operand, args[0].field, test=True)

    def name(self, wanted: str, excluded: frozenset[str]) -> str:
        token = self.token
        if token.kind != "name":
            self.unexpected(wanted)
        if token.text in excluded:
            raise error_at(self.text, token.at, f"{token.text!r} is a reserved word and no name here")
        self.advance()
        return token.text

    def sequence(self, closing: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self.accept(closing):
            items.append(self.expression())
            if not self.accept(","):
                self.expect(closing)
                break
            if closing == ")" and self.token.text == closing and self.token.kind == "symbol":
                self.unexpected("an argument")
        return tuple(items)

    def entries(self) -> tuple[tuple[Node, Node], ...]:
        entries: list[tuple[Node, Node]] = []
        while not self.accept("}"):
            key = self.expression()
            self.expect(":")
            entries.append((key, self.expression()))
            if not self.accept(","):
                self.expect("}")
                break
        return tuple(entries)

    def macro(self, at: int, macro: str, over: Node, args: tuple[Node, ...]) -> Node:
        if len(args) not in MACROS[macro]:
            counts = " or ".join(str(count) for count in MACROS[macro])
            raise error_at(self.text, at, f"{macro}() takes {counts} arguments, not {len(args)}")
        variable = args[0]
        if not isinstance(variable, Name) or variable.name.startswith("."):
            raise error_at(self.text, variable.at, f"the first argument of {macro}() is the name of a variable")
        return Macro(at, macro, over, variable.name, args[1] if len(args) == 3 else None, args[-1])
