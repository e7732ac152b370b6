"""Find names in docstrings that nothing has: those after "Raises", and code spans that look like names of Python.

    python -m tools.docstring_names [PATH...]

Prints ``file:line: name: what is wrong`` and ends with 1 if there is one. ``tools/docstring_names.toml`` lists names
that others have. It reports only what certainly is not a name of ours: a span that is also data (a reason, a key of
YAML, a word of the command line) passes, and so does an attribute of a value whose class it cannot tell.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import keyword
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.words import ROOT, files

LIST = Path(__file__).with_suffix(".toml")
SOURCES = ("", "solver", "node-plugin")
"""folders in which packages stand"""
_SPAN = re.compile(r"(?<!`)(`{1,2})(?P<code>[^`\n]+)\1(?!`)")
_NAME = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(.*\))?")
_RAISES = re.compile(r"\b[Rr]aises?\b(?P<section>:\n)?")
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n\s*\n")
_KEY = re.compile(r"(?:^|\.)[a-z]+[A-Z]|^[A-Z]+\.[a-z]")
"""A key of an object or a method of CEL, or a part of a path to be filled in: ``spec.nodeName``, ``NAME.run``."""
_ERROR = r"(?P<error>(?:(?:[a-z]\w*\.)+)?(?!None\b|True\b|False\b)_?[A-Z]\w*[a-z]\w*(?:\.\w+)*)"
_FIRST_ERROR = re.compile(rf"\s+(?:``?)?{_ERROR}")
_NEXT_ERROR = re.compile(rf"(?:,|;|\band|\bor)\s+{_ERROR}(?![\w'])")
_SECTION_ENTRY = re.compile(rf"^(?P<indent> +){_ERROR}:", re.MULTILINE)
_LANGUAGE = frozenset({*dir(builtins), *keyword.kwlist})
_FILE = re.compile(r"\.(?:conf|img|ini|js|json|ko|log|md|proto|service|sock|so|toml|txt|yaml|yml)$")


@dataclass
class ClassFacts:
    """What a class defines itself."""

    bases: tuple[str, ...]
    members: set[str]


@dataclass
class Module:
    """What a module has, as far as it can be read."""

    path: Path
    name: str
    docstrings: list[tuple[int, str]] = field(default_factory=list)
    """(first line, text)"""
    bound: set[str] = field(default_factory=set)
    """names of its own, and of what it imports"""
    names: set[str] = field(default_factory=set)
    """all names in its code, those of attributes too"""
    used: set[str] = field(default_factory=set)
    """these, names of parameters, and words of its texts"""
    defined: set[str] = field(default_factory=set)
    """names that other modules might mean: of classes, functions, fields, and of the module"""
    words: set[str] = field(default_factory=set)
    """of its data: texts without a space"""
    classes: dict[str, ClassFacts] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """name -> the dotted name that it is imported from"""


def read_module(path: Path, name: str, text: str) -> Module:
    """The facts of a module. Texts that are statements are docstrings: those below fields and constants, too."""
    module, tree = Module(path, name), ast.parse(text)
    module.defined.add(name.rpartition(".")[2])
    docstrings: set[int] = set()
    for node in ast.walk(tree):  # a statement comes before what is in it
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))
            module.docstrings.append((node.value.lineno, node.value.value))
        elif id(node) not in docstrings:
            _read_node(module, node)
    for statement in tree.body:
        module.bound |= _targets(statement)
    module.defined |= module.bound - module.origins.keys()
    module.used |= module.names
    return module


def _read_node(module: Module, node: ast.AST) -> None:
    match node:
        case ast.ClassDef():
            module.bound.add(node.name)
            members = _members(node)
            bases = tuple(base for each in node.bases if (base := _base(each)) is not None)
            module.classes[node.name] = ClassFacts(bases, members)
            module.defined |= members | {node.name}
            module.used |= members
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            module.bound.add(node.name)
            module.defined.add(node.name)
        case ast.Import():
            module.origins |= {each.asname or each.name.partition(".")[0]: each.name for each in node.names}
            module.used |= {part for each in node.names for part in each.name.split(".")}
        case ast.ImportFrom():
            module.origins |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            module.used |= {each.name for each in node.names}
        case ast.Name():
            module.names.add(node.id)
        case ast.Attribute():
            module.names.add(node.attr)
        case ast.arg():
            module.used.add(node.arg)
        case ast.keyword() if node.arg:
            module.used.add(node.arg)
        case ast.Constant(value=str(text)):
            words = set(re.findall(r"\w+", text))
            module.used |= words
            module.words |= set() if " " in text.strip() else words | {text}


def _targets(statement: ast.AST) -> set[str]:
    """The names that a statement assigns to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {node.id for each in targets if each is not None for node in ast.walk(each) if isinstance(node, ast.Name)}


def _members(node: ast.ClassDef) -> set[str]:
    members: set[str] = set()
    for statement in node.body:
        members |= _targets(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            members.add(statement.name)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            members.add(inner.attr)
    return members


def _base(node: ast.expr) -> str | None:
    """The name of a base; None for what only says of which types it is."""
    while isinstance(node, ast.Subscript):
        node = node.value
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return None if name in ("Generic", "Protocol", "ABC", "object") else name


@dataclass
class Repository:
    """All modules, and what their docstrings may name."""

    modules: Mapping[str, Module]
    foreign: Mapping[str, str] = field(default_factory=dict)
    """names that others have -> what they are"""
    objects: frozenset[str] = frozenset()
    """what paths into objects and expressions begin with"""

    @cached_property
    def defined(self) -> set[str]:
        """Whatever a module defines, or has as data."""
        return {name for module in self.modules.values() for name in module.defined | module.words}

    @cached_property
    def used(self) -> set[str]:
        """All names of attributes and parameters anywhere."""
        return {name for module in self.modules.values() for name in module.used}

    @cached_property
    def classes(self) -> dict[str, list[ClassFacts]]:
        by_name = defaultdict(list)
        for module in self.modules.values():
            for name, facts in module.classes.items():
                by_name[name].append(facts)
        return by_name

    @cached_property
    def stems(self) -> dict[str, list[Module]]:
        """The last part of the name of a module or package -> those."""
        by_stem = defaultdict(list)
        for name, module in self.modules.items():
            by_stem[name.rpartition(".")[2]].append(module)
        return by_stem

    @cached_property
    def libraries(self) -> set[str]:
        """Packages of others."""
        imported = {origin.partition(".")[0] for module in self.modules.values() for origin in module.origins.values()}
        return (imported | sys.stdlib_module_names) - self.roots

    @cached_property
    def roots(self) -> set[str]:
        return {name.partition(".")[0] for name in self.modules}

    # -- code spans ----------------------------------------------------------------------------------------------------

    def has(self, path: str, module: Module) -> bool:
        """Whether a name in a docstring of a module is that of anything."""
        first, *rest = path.split(".")
        if self._is_foreign(path) or (rest and _KEY.search(path)) or path in self.defined:
            return True
        if not rest:
            return self._has_word(first, module) or _is_composed(first, module)
        if _FILE.search(path):
            return True
        if rest[-1] == "py":
            return first in self.stems
        if first in self.roots:
            return self._has_absolute(path)
        origin = module.origins.get(first, "")
        if origin and origin.partition(".")[0] not in self.roots:
            return True  # of a library
        if first in self.libraries and first not in self.stems:
            return True
        things = self._things(first, origin, module)
        if any(self._has_member(each, rest) for each in things):
            return True
        return first in (module.used | self.objects) and first[0].islower() and self._are_attributes(rest)

    def _is_foreign(self, path: str) -> bool:
        return any(path == name or path.startswith(f"{name}.") for name in self.foreign)

    def _has_word(self, name: str, module: Module) -> bool:
        return name in module.used or name in module.bound or name in self.defined or name in _LANGUAGE

    def _are_attributes(self, names: list[str]) -> bool:
        return all(name in self.used or name in self.defined for name in names)

    def _has_absolute(self, path: str) -> bool:
        parts = path.split(".")
        for number in range(len(parts), 0, -1):
            module = self.modules.get(".".join(parts[:number]))
            if module is not None:
                return self._has_member(module, parts[number:])
        # A package without modules of its own, such as a folder of tests.
        return any(name.startswith(f"{path}.") for name in self.modules)

    def _things(self, first: str, origin: str, module: Module) -> list[Module | ClassFacts]:
        """The modules and classes that a name may mean: what is imported under it, else all of that name."""
        if origin in self.modules:
            return [self.modules[origin]]
        own = module.classes.get(first)
        if own is not None:
            return [own]
        return [*self.classes.get(first, ()), *self.stems.get(first, ())]

    def _has_member(self, thing: Module | ClassFacts, rest: list[str]) -> bool:
        if not rest:
            return True
        name, *further = rest
        if isinstance(thing, ClassFacts):
            return self._class_has(thing, name, set()) and self._are_attributes(further)
        inner = self.modules.get(f"{thing.name}.{name}")
        if inner is not None:
            return self._has_member(inner, further)
        if name in thing.classes:
            return self._has_member(thing.classes[name], further)
        return name in thing.bound or name in thing.origins

    def _class_has(self, facts: ClassFacts, name: str, seen: set[str]) -> bool:
        if name in facts.members:
            return True
        for base in facts.bases:
            same_name = self.classes.get(base, [])
            if not same_name and name in self.used:
                return True  # a base of a library may have it
            if base not in seen and any(self._class_has(each, name, seen | {base}) for each in same_name):
                return True
        return False

    # -- errors --------------------------------------------------------------------------------------------------------

    def problem_of_error(self, path: str, module: Module) -> str | None:
        """What is wrong with a name after "Raises"."""
        first, *rest = path.split(".")
        if rest:
            return None if self.has(path, module) else "no such error"
        if isinstance(getattr(builtins, first, None), type) or self._is_foreign(path):
            return None
        near = [module, *self._imported(module)]
        if not any(first in each.names or first in each.bound or first in each.origins for each in near):
            return "not an error of this module or of what it imports"
        candidates = [module.classes[first]] if first in module.classes else self.classes.get(first, [])
        is_error = not candidates or any(self._is_error(each, set()) for each in candidates)
        return None if is_error else "not an error"

    def _imported(self, module: Module) -> list[Module]:
        names = {name for origin in module.origins.values() for name in (origin, origin.rpartition(".")[0])}
        return [self.modules[name] for name in names & self.modules.keys()]

    def _is_error(self, facts: ClassFacts, seen: set[str]) -> bool:
        for base in facts.bases:
            builtin = getattr(builtins, base, None)
            if isinstance(builtin, type) and issubclass(builtin, BaseException):
                return True
            same_name = self.classes.get(base, [])
            if not same_name and builtin is None:
                return True  # of a library
            if base not in seen and any(self._is_error(each, seen | {base}) for each in same_name):
                return True
        return False


def _is_composed(name: str, module: Module) -> bool:
    """Whether a module puts a name together from texts, as those of metrics."""
    stem = name.removesuffix("_total").rstrip("0123456789")
    ends = ["", *(word for word in module.words if word.startswith("_"))]
    starts = ["", *(word for word in module.words if word.endswith("_"))]
    return any(
        stem.startswith(start) and stem.endswith(end) and stem[len(start) : len(stem) - len(end)] in module.used
        for start in starts
        for end in ends
    )


def spans(text: str) -> Iterator[tuple[int, str]]:
    """(offset, dotted name) of the code spans that look like names, without the arguments of calls."""
    for span in _SPAN.finditer(text):
        name = _NAME.fullmatch(span["code"])
        if name is not None:
            yield span.start(), name["path"]


def errors(text: str) -> Iterator[tuple[int, str]]:
    """(offset, name) of what a docstring says is raised."""
    for start in _RAISES.finditer(text):
        if start["section"]:
            yield from _section_errors(text, start.end())
            continue
        first = _FIRST_ERROR.match(text, start.end())
        if first is None:
            continue
        yield first.start("error"), first["error"]
        end = _SENTENCE_END.search(text, first.end())
        for each in _NEXT_ERROR.finditer(text, first.end(), end.start() if end else len(text)):
            yield each.start("error"), each["error"]


def _section_errors(text: str, start: int) -> Iterator[tuple[int, str]]:
    indent: str | None = None
    for entry in _SECTION_ENTRY.finditer(text, start):
        indent = entry["indent"] if indent is None else indent
        if entry["indent"] == indent:
            yield entry.start("error"), entry["error"]


def complaints(module: Module, repository: Repository) -> list[str]:
    """``file:line: name: what is wrong``, in the order of lines."""
    hits: list[tuple[int, str, str]] = []
    for line, text in module.docstrings:
        for offset, name in spans(text):
            if not repository.has(name, module):
                hits.append((line + text.count("\n", 0, offset), name, "nothing has this name"))
        for offset, name in errors(text):
            problem = repository.problem_of_error(name, module)
            if problem is not None:
                hits.append((line + text.count("\n", 0, offset), name, problem))
    return [f"{module.path}:{line}: {name}: {problem}" for line, name, problem in sorted(set(hits))]


def read_repository() -> Repository:
    """All modules that git knows, but those that ``tools.words`` leaves out."""
    modules = {}
    for path in files([]):
        relative = path.relative_to(ROOT)
        if path.suffix == ".py":
            name = module_name(relative)
            modules[name] = read_module(relative, name, path.read_text())
    listed = tomllib.loads(LIST.read_text())
    return Repository(modules, listed["foreign"], frozenset(listed["objects"]))


def module_name(path: Path) -> str:
    """The dotted name of a module by its path from the root."""
    parts = path.with_suffix("").parts
    parts = parts[1:] if parts[0] in SOURCES else parts
    return ".".join(parts).removesuffix(".__init__")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="modules or folders; default: all")
    paths = [Path(path).resolve() for path in parser.parse_args(arguments).paths]
    repository = read_repository()
    number = 0
    for module in repository.modules.values():
        absolute = ROOT / module.path
        if not paths or any(absolute.is_relative_to(path) for path in paths):
            for line in complaints(module, repository):
                print(line)
                number += 1
    if number:
        print(f"{number} names to correct; tools/docstring_names.toml lists those that others have", file=sys.stderr)
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
