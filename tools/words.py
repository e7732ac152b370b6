"""Find words that the house style refuses, in names and in prose: ``tools/words.toml`` has the list.

    python -m tools.words [PATH...]

Prints ``file:line: word: what to write instead`` and ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
EXEMPT = (
    "CHANGELOG.md",  # what was said before stays as it was said
    "CONTRIBUTING.md",  # shows what not to write
    "docs/development/glossary.md",
    "tests/unit/support/test_words.py",
    "tests/upgrade/",
    "tests/data/",
    "node-plugin/devalloc_node/pb/",
)
# From Python 3.12 on, the texts of an f-string are tokens of their own.
_PROSE = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True)
class Words:
    """The list, ready to be searched for."""

    names: dict[str, str]
    parts: dict[str, str]
    prose: tuple[tuple[re.Pattern[str], str], ...]
    allowed: dict[str, frozenset[str]]
    """by path from the root: names that stay there, because manifests or other data have them"""

    def in_name(self, name: str) -> Iterator[tuple[str, str]]:
        """What was written, what to write instead: the whole name, its parts, and the name read as a sentence."""
        plain = name.strip("_").lower()
        if plain in self.names:
            yield name, self.names[plain]
            return
        parts = {part.lower() for part in (*_PART.findall(name), plain)} & self.parts.keys()
        for part in sorted(parts):
            yield name, self.parts[part]
        if not parts:
            for _, _, instead in self.in_text(plain.replace("_", " ")):
                yield name, instead

    def in_text(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Offset, what was written, what to write instead."""
        for pattern, instead in self.prose:
            for match in pattern.finditer(text):
                yield match.start(), match[0], instead


def read_words(path: Path = LIST) -> Words:
    content = tomllib.loads(path.read_text())
    prose = tuple((re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in content["prose"].items())
    allowed = {path: frozenset(names) for path, names in content["allowed"].items()}
    return Words(content["names"], content["parts"], prose, allowed)


def complaints(path: Path, text: str, words: Words) -> list[str]:
    """``file:line: word: what to write instead``, in the order of lines."""
    hits: list[tuple[int, str, str]] = []
    if path.suffix == ".py":
        allowed = words.allowed.get(path.as_posix(), frozenset())
        for line, name in [(1, path.stem), *_names(ast.parse(text))]:
            if name not in allowed:
                hits += [(line, word, instead) for word, instead in words.in_name(name)]
        for line, prose in _prose(text):
            hits += [(line + prose.count("\n", 0, at), word, instead) for at, word, instead in words.in_text(prose)]
    else:
        hits += [(text.count("\n", 0, at) + 1, word, instead) for at, word, instead in words.in_text(text)]
    return [f"{path}:{line}: {word}: {instead}" for line, word, instead in sorted(set(hits))]


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that the module binds, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Strings and comments, with their lines. A string without a space is data, such as the name of an object."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _PROSE and (token.type == tokenize.COMMENT or " " in token.string):
            yield token.start[0], token.string


def files(paths: list[str]) -> list[Path]:
    """The modules and documents among these paths, and below them; default: those that git knows."""
    if not paths:
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        )
        paths = [str(ROOT / line) for line in listed.stdout.splitlines()]
    below = [
        file
        for each in map(Path, paths)
        for file in (sorted([*each.rglob("*.py"), *each.rglob("*.md")]) if each.is_dir() else [each])
    ]
    return [path for path in below if path.exists() and not _is_exempt(path)]


def _is_exempt(path: Path) -> bool:
    absolute = path.resolve()
    name = str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else str(path)
    return name.startswith(EXEMPT)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="modules, documents or folders; default: all")
    words = read_words()
    number = 0
    for path in files(parser.parse_args(arguments).paths):
        absolute = path.resolve()
        shown = absolute.relative_to(ROOT) if absolute.is_relative_to(ROOT) else path
        for line in complaints(shown, path.read_text(), words):
            print(line)
            number += 1
    if number:
        print(f"{number} words to replace: tools/words.toml has the list", file=sys.stderr)
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
