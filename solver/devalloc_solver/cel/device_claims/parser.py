"""From text to a syntax tree, by recursive descent; linear in the length, bounded in depth.

The official runtime could parse this dialect, too, but allows 32 levels only, and reports faults in the terms of its
grammar; cel-python takes ``'\\'`` for a whole string. The grammar of CEL is a page.
"""

from __future__ import annotations

from typing import NoReturn

from devalloc_solver.cel.device_claims.lexer import Token, tokenize
from devalloc_solver.cel.errors import CompileError, error_at
from devalloc_solver.cel.syntax_tree import (
    Call,
    Comprehension,
    Entry,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    Select,
    children,
)
from devalloc_solver.cel.values import INT_MAX, INT_MIN, shorten

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
        self.levels: dict[int, tuple[int, Node]] = {}
        """identity of a node -> the levels of its tree; only those of more than one level, and with the node, so that
        no other one gets its identity"""

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

    def bounded(self, node: Node, *parts: Node) -> Node:
        """``node``, if it nests no deeper than allowed; ``parts``: what stands in it, for a node that was expanded."""
        below, deep = 0, self.levels
        for part in parts or children(node):
            entry = deep.get(id(part))
            below = max(below, 1 if entry is None else entry[0])
        if below >= MAX_DEPTH:
            raise self.too_deep(node.id)
        deep[id(node)] = below + 1, node
        return node

    def nest(self, at: int) -> None:
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise self.too_deep(at)

    def too_deep(self, at: int) -> CompileError:
        return error_at(self.text, at, f"the expression nests more than {MAX_DEPTH} levels deep")

    # -- grammar -----------------------------------------------------------------------------------------------------

    def expression(self) -> Node:
        node = self.operation(1)
        at = self.token.at
        if self.accept("?"):
            then = self.operation(1)
            self.expect(":")
            self.nest(at)
            node = self.bounded(Call(at, "_?_:_", (node, then, self.expression())))
            self.nesting -= 1
        return node

    def operation(self, least: int) -> Node:
        """Operands joined by binary operators that bind at least as tight as ``least``."""
        self.nest(self.token.at)
        node = self.unary()
        while (level := self.binding()) >= least:
            operator = self.advance()
            right = self.operation(level + 1)
            if operator.text in _LOGICAL:
                operands = [node, right]
                while self.accept(operator.text):
                    operands.append(self.operation(level + 1))
                node = Call(operator.at, f"_{operator.text}_", tuple(operands))
            else:
                function = "@in" if operator.text == "in" else f"_{operator.text}_"
                node = Call(operator.at, function, (node, right))
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
            node = self.bounded(Call(operator.at, f"{operator.text}_", (node,)))
        return node

    def postfix(self, node: Node) -> Node:
        while self.token.kind == "symbol":
            at = self.token.at
            if self.accept("."):
                at = self.token.at
                field = self.name("the name of a field or method", _KEYWORDS)
                if self.accept("("):
                    args = self.sequence(")")
                    if field in MACROS:
                        node = self.macro(at, field, node, args)
                    else:
                        node = self.bounded(Call(at, field, (node, *args), method=True))
                else:
                    node = self.bounded(Select(at, node, field))
            elif self.accept("["):
                key = self.expression()
                self.expect("]")
                node = self.bounded(Call(at, "_[_]", (node, key)))
            elif self.token.text == "{" and isinstance(node, Name | Select):
                raise error_at(self.text, at, "message types are not part of this dialect")
            else:
                break
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
            return Literal(minus.at, INT_MIN if value == INT_MAX + 1 else -value)
        if type(value) is float:
            return Literal(minus.at, -value)
        raise error_at(self.text, minus.at, f"an unsigned integer has no negative: -{token.text}")

    def identifier(self, at: int, dot: str) -> Node:
        name = self.name("a name", _KEYWORDS | _RESERVED)
        if not self.accept("("):
            return Name(at, dot + name)
        args = self.sequence(")")
        if name != "has" or dot:
            return self.bounded(Call(at, name, args))
        if len(args) != 1 or not isinstance(args[0], Select):
            raise error_at(self.text, at, "has() takes one field, such as has(device.model)")
        return self.bounded(Select(at, args[0].operand, args[0].field, test=True))

    def name(self, wanted: str, excluded: frozenset[str]) -> str:
        token = self.token
        if token.kind != "name":
            self.unexpected(wanted)
        if token.text in excluded:
            raise error_at(self.text, token.at, f"{token.text!r} is a reserved word, so it cannot be a name here")
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

    def entries(self) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        while not self.accept("}"):
            key = self.expression()
            self.expect(":")
            entries.append(Entry(key, self.expression()))
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
            raise error_at(self.text, variable.id, f"the first argument of {macro}() is the name of a variable")
        return self.bounded(_expanded(at, macro, over, variable.name, args[1:]), over, *args[1:])


_RESULT, _TRUE, _FALSE = Name(0, "@result"), Literal(0, True), Literal(0, False)
_ZERO, _ONE = Literal(0, 0), Literal(0, 1)
_UNTIL_FALSE = Call(0, "@not_strictly_false", (_RESULT,))
_UNTIL_TRUE = Call(0, "@not_strictly_false", (Call(0, "!_", (_RESULT,)),))
_COUNTED = Call(0, "_+_", (_RESULT, _ONE))
_IS_ONE = Call(0, "_==_", (_RESULT, _ONE))
_NONE = ListOf(0, ())


def _expanded(at: int, macro: str, over: Node, variable: str, args: tuple[Node, ...]) -> Comprehension:
    """What a macro stands for, as the official runtime expands it: a step gives the next value of an accumulator."""

    def fold(start: Node, condition: Node, step: Node, final: Node) -> Comprehension:
        return Comprehension(at, variable, "", over, _RESULT.name, start, condition, step, final)

    body = args[-1]
    if macro == "all":
        return fold(_TRUE, _UNTIL_FALSE, Call(at, "_&&_", (_RESULT, body)), _RESULT)
    if macro == "exists":
        return fold(_FALSE, _UNTIL_TRUE, Call(at, "_||_", (_RESULT, body)), _RESULT)
    if macro == "exists_one":
        return fold(_ZERO, _TRUE, Call(at, "_?_:_", (body, _COUNTED, _RESULT)), _IS_ONE)
    value = Name(at, variable) if macro == "filter" else body
    step = Call(at, "_+_", (_RESULT, ListOf(at, (value,))))
    if macro == "filter" or len(args) == 2:
        step = Call(at, "_?_:_", (args[0], step, _RESULT))
    return fold(_NONE, _TRUE, step, _RESULT)
