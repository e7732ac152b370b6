"""From text to tokens: the lexical rules of CEL (langdef, "Lexis")."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from devalloc_solver.cel.errors import error_at
from devalloc_solver.cel.values import INT_MAX, UINT_MAX, UInt, shorten

_SKIP = re.compile(r"(?:[ \t\n\f\r]+|//[^\n]*)*")
_NUMBER = re.compile(
    r"(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>0x[0-9a-fA-F]+|[0-9]+)(?P<uint>[uU]?)"
)
_NAME = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_PREFIX = re.compile(r"(?:[rR][bB]?|[bB][rR]?)?(?P<quote>'''|\"\"\"|'|\")")
_SYMBOL = re.compile(r"&&|\|\||[<>=!]=|[-+*/%<>!?:.,()\[\]{}]")
_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\?\"'`])|[xX](?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.?))",
    re.DOTALL,
)
_SIMPLE = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))
# The rest of a string after its opening quote, by (quote, raw).
_REST = {
    (quote, raw): re.compile(
        {
            (1, False): rf"(?:[^\\\r\n{quote}]|\\[^\r\n])*{quote}",
            (1, True): rf"[^\r\n{quote}]*{quote}",
            (3, False): rf"(?:[^\\]|\\.)*?{quote}",
            (3, True): rf".*?{quote}",
        }[len(quote), raw],
        re.DOTALL,
    )
    for quote in ("'", '"', "'''", '"""')
    for raw in (False, True)
}
_HINTS = {
    "=": "write == to compare",
    "&": "write && for and",
    "|": "write || for or",
    "`": "write device['name'] for such a name",
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "write plain quotes: ' or \""),
}


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: name, literal, symbol or end; ``text``: a name or symbol; ``value``: of a literal; ``at``: offset."""

    kind: str
    text: str
    at: int
    value: object = None
    negatable: bool = False
    """The literal is 9223372036854775808, which is an integer only after a minus."""


def tokenize(text: str) -> list[Token]:
    """All tokens of ``text``, the last of kind ``end``. Raises CompileError."""
    tokens: list[Token] = []
    at = 0
    while True:
        skipped = _SKIP.match(text, at)
        at = skipped.end() if skipped else at
        if at == len(text):
            tokens.append(Token("end", "the end", at))
            return tokens
        if match := _PREFIX.match(text, at):
            token, at = _string(text, at, match)
        elif match := _NUMBER.match(text, at):
            token, at = _number(text, at, match), match.end()
        elif match := _NAME.match(text, at):
            token, at = Token("name", match[0], at), match.end()
        elif match := _SYMBOL.match(text, at):
            token, at = Token("symbol", match[0], at), match.end()
        else:
            hint = _HINTS.get(text[at])
            raise error_at(text, at, f"unexpected character {text[at]!r}" + (f"; {hint}" if hint else ""))
        tokens.append(token)


def _number(text: str, at: int, match: re.Match[str]) -> Token:
    if _NAME.match(text, match.end()):
        raise error_at(text, at, f"malformed number {text[at : match.end() + 1]!r}")
    written = match[0]
    if match["float"]:
        number = float(written)
        if math.isinf(number):
            raise error_at(text, at, f"{shorten(written)} is beyond the range of a double")
        return Token("literal", written, at, number)
    digits = match["int"]
    value = int(digits, 16 if digits.startswith("0x") else 10) if len(digits) <= 30 else UINT_MAX + 1
    if match["uint"]:
        if value > UINT_MAX:
            raise error_at(text, at, f"{shorten(written)} is beyond the range of a 64-bit unsigned integer")
        return Token("literal", written, at, UInt(value))
    if value > INT_MAX + 1:
        raise error_at(text, at, f"{shorten(written)} is beyond the range of a 64-bit integer")
    return Token("literal", written, at, value, negatable=value == INT_MAX + 1)


def _string(text: str, at: int, prefix: re.Match[str]) -> tuple[Token, int]:
    quote = prefix["quote"]
    letters = prefix[0][: -len(quote)].lower()
    if "b" in letters:
        raise error_at(text, at, "bytes literals are not part of this dialect; write a string")
    raw = "r" in letters
    rest = _REST[quote, raw].match(text, prefix.end())
    if rest is None:
        raise error_at(text, at, f"the string is not closed with {quote}")
    body = rest[0][: -len(quote)]
    value = body if raw else _unescape(text, prefix.end(), body)
    return Token("literal", text[at : rest.end()], at, value), rest.end()


def _unescape(text: str, start: int, body: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match["simple"]:
            return _SIMPLE[match["simple"]]
        if match["octal"]:
            return chr(int(match["octal"], 8))
        digits = match["x"] or match["u"] or match["U"]
        if digits is None:
            message = f"unknown escape {match[0]!r} in a string; write \\\\ for a backslash, or a raw string r'...'"
            raise error_at(text, start + match.start(), message)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise error_at(text, start + match.start(), f"{match[0]} is not a Unicode character")
        return chr(code)

    return _ESCAPE.sub(replace, body)
