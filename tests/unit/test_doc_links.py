"""Links between the documents of this repository lead to files, and to headings of them, that are there.

The documents about the code (``ABOUT_CODE``) name files, folders and modules in code, too. Those exist as well:

* a path is relative to the repository, or to a folder that the same section names in full; after ``::`` follows a
  test of that file;
* a dotted name begins with one of our packages and is a module, or a name that its last module defines.

So do the modules that the docstring of a package lists.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.repository import REPO

FOLDERS = ("docs", "examples", "benchmarks", "devalloc", "tests/data")
DOCUMENTS = [
    *sorted(REPO.glob("*.md")),
    *(path for folder in FOLDERS for path in sorted((REPO / folder).rglob("*.md"))),
]

ABOUT_CODE = [
    REPO / "ARCHITECTURE.md",
    REPO / "CONTRIBUTING.md",
    *(
        REPO / "docs" / name
        for name in (
            "library.md",
            "security.md",
            "development/solver.md",
            "development/tested.md",
            "development/where-to-change.md",
        )
    ),
    *sorted((REPO / "docs/development/decisions").glob("*.md")),
]
SOURCES = {
    "devalloc": ".",
    "devalloc_solver": "solver",
    "devalloc_node": "node-plugin",
    "devalloc_machines": "node-plugin",
    "devalloc_neon": "node-plugin",
    "tools": ".",
    "tests": ".",
}
"""The folder in which each of our packages lies."""

_CODE = re.compile(r"^( *)```.*?^\1```|(`+)(?!`).+?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(
    r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)|\b(?:href|src)=\"([^\"]+)\"|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_NAMED = re.compile(r"<[^>]*\b(?:id|name)=\"([^\"]+)\"")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
_ENTRY = re.compile(r"^- ``.*(?:\n  .*)*", re.MULTILINE)
_MODULE = re.compile(r"``([a-z_0-9]+)``")
_SECTION = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_PATH = re.compile(r"[\w.\-*]+(?:/[\w.\-*]+)*/?")
_DOTTED = re.compile(rf"(?:{'|'.join(SOURCES)})(?:\.[A-Za-z_]\w*)+")
_OF_A_FILE = (".py", ".md", ".toml", ".yaml", ".json", ".proto", ".txt")
_OF_THE_API = ("devalloc.io", "resource.k8s.io", "devmgmtproto.k8s.io")
"""Domains, which look like modules and, with what follows them in annotations, like paths."""
MANY_MODULES = 9
"""How many tasks need more than five modules: lower it, never raise it."""
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def links(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of each link and picture outside code."""
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in _LINK.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, match[1] or match[2] or match[3]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document, and those that it names itself."""
    prose = _FENCED.sub("", text)
    anchors: set[str] = {*_NAMED.findall(prose)}
    for heading in _HEADING.findall(prose):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = base = re.sub(r"[^\w\- ]", "", shown).strip().lower().replace(" ", "-")
        number = 0
        while slug in anchors:
            number += 1
            slug = f"{base}-{number}"
        anchors.add(slug)
    return anchors


@cache
def _anchors(path: Path) -> frozenset[str]:
    return frozenset(anchors_of(path.read_text()))


def wrong(document: Path) -> list[str]:
    """The links of a document that lead nowhere, each with its line."""
    problems = []
    for line, target in links(document.read_text()):
        if _ELSEWHERE.match(target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / unquote(name)).resolve() if name else document
        if not path.is_relative_to(REPO) or not path.exists():
            problems.append(f"line {line}: {target}: there is no such file")
        elif anchor and path.suffix == ".md" and unquote(anchor) not in _anchors(path):
            problems.append(f"line {line}: {target}: there is no such heading")
    return problems


def names_in_code(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each path and dotted module in the code of a document: all of those between back quotes; of
    indented lines the paths that begin with a folder of the repository."""
    for match in _INLINE.finditer(text):
        name, path = match[1], match[1].partition("::")[0]
        if name.startswith(_OF_THE_API):
            continue
        if _DOTTED.fullmatch(name) or (_PATH.fullmatch(path) and ("/" in path or path.endswith(_OF_A_FILE))):
            yield text.count("\n", 0, match.start()) + 1, name
    for match in _INDENTED.finditer(text):
        for word in match[0].split():
            name = word.strip(",.:;()")
            if _PATH.fullmatch(name) and "/" in name and (REPO / name.partition("/")[0]).is_dir():
                yield text.count("\n", 0, match.start()) + 1, name


def absent(document: Path) -> list[str]:
    """The files, folders and modules that a document names in code and that are not there, each with its line."""
    problems, first = [], 1
    for section in _SECTION.split(document.read_text()):
        names = [*names_in_code(section)]
        folders = [REPO, *(REPO / name for _, name in names if name.endswith("/") and (REPO / name).is_dir())]
        for line, name in names:
            if not (_is_in_code(name) if _DOTTED.fullmatch(name) else _is_in_tree(name, folders)):
                problems.append(f"line {first + line - 1}: {name}: there is no such file, folder or module")
        first += section.count("\n")
    return problems


def _is_in_tree(name: str, folders: list[Path]) -> bool:
    path, _, test = name.partition("::")
    files = [file for folder in folders for file in folder.glob(path)]
    return any(not test or f"def {test}(" in file.read_text() for file in files)


def _is_in_code(dotted: str) -> bool:
    package, *names = dotted.split(".")
    path = REPO / SOURCES[package] / package
    for index, name in enumerate(names):
        if not (path / name).is_dir() and not (path / f"{name}.py").is_file():
            source = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
            return index == len(names) - 1 and re.search(rf"\b{name}\b", source.read_text()) is not None
        path /= name
    return True


def absent_modules(package: Path) -> list[str]:
    """The modules that the docstring of a package lists, in lines that begin with ``- ``, and that it does not have."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    names = [name for entry in _ENTRY.findall(docstring) for name in _MODULE.findall(entry)]
    return [name for name in names if not (package / f"{name}.py").is_file() and not (package / name).is_dir()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPO)))
def test_links_lead_somewhere(document: Path) -> None:
    assert wrong(document) == []


@pytest.mark.parametrize("document", ABOUT_CODE, ids=lambda path: str(path.relative_to(REPO)))
def test_what_documents_about_the_code_name_is_there(document: Path) -> None:
    assert absent(document) == []


def test_packages_have_the_modules_that_they_list() -> None:
    folders = [REPO / place / name for name, place in SOURCES.items()]
    packages = [path.parent for folder in folders for path in sorted(folder.rglob("__init__.py"))]
    assert {str(package.relative_to(REPO)): names for package in packages if (names := absent_modules(package))} == {}


def test_documents_are_found() -> None:
    names = {str(path.relative_to(REPO)) for path in DOCUMENTS}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "docs/claims.md",
        "docs/development/spec/README.md",
    } <= names


def test_headings_get_the_anchors_that_github_gives_them() -> None:
    text = '# Once: `solve_manifests`\n## S12a *It*, or [not](x.md)\n## Twice\n## Twice\n<a id="own"></a>\n'
    text += "```\n# no\n```\n"
    assert anchors_of(text) == {"once-solve_manifests", "s12a-it-or-not", "twice", "twice-1", "own"}


def test_links_are_found_outside_code() -> None:
    text = 'See [a](b.md#c), ![p](d.png "title") and `[no](e.md)`.\n\n[ref]: f.md\n<img src="g.svg">\n'
    text += "```\n[no](h.md)\n```\n"
    assert [*links(text)] == [(1, "b.md#c"), (1, "d.png"), (3, "f.md"), (4, "g.svg")]


def test_links_that_lead_nowhere_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_doc_links.REPO", tmp_path)
    (tmp_path / "b.md").write_text("# Here\n")
    document = tmp_path / "a.md"
    document.write_text(
        "[1](b.md#here) [2](b.md#there) [3](c.md)\n[4](#nowhere) [5](https://d.example/#e) [6](../b.md)\n"
    )
    assert wrong(document) == [
        "line 1: b.md#there: there is no such heading",
        "line 1: c.md: there is no such file",
        "line 2: #nowhere: there is no such heading",
        "line 2: ../b.md: there is no such file",
    ]


def test_names_in_code_are_paths_and_modules() -> None:
    text = "`devalloc/api/`, `meta.py`, `devalloc.api.meta`; not `NODE`, `a b/c.py`, `devalloc.io/reason`, x/y.py\n"
    text += "`tests/unit/test_x.py::test_y`\n\n    make docs/development/solver.md, or dist/x\n"
    assert [*names_in_code(text)] == [
        (1, "devalloc/api/"),
        (1, "meta.py"),
        (1, "devalloc.api.meta"),
        (2, "tests/unit/test_x.py::test_y"),
        (4, "docs/development/solver.md"),
    ]


def test_names_of_what_is_not_there_are_reported(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# One\n`devalloc/api/` has `meta.py` and `metal.py`; `devalloc/apis/`\n# Two\n`meta.py` `tests/*/absent*` "
        "`tests/unit/test_version.py::test_absent`\n"
        "`devalloc.api.meta` `devalloc.api.meta.NODE` `devalloc.api.metal` `devalloc.api.meta.NODES` `devalloc.a.b`\n"
    )
    assert absent(document) == [
        f"line {line}: {name}: there is no such file, folder or module"
        for line, name in [
            (2, "metal.py"),
            (2, "devalloc/apis/"),
            (4, "meta.py"),
            (4, "tests/*/absent*"),
            (4, "tests/unit/test_version.py::test_absent"),
            (5, "devalloc.api.metal"),
            (5, "devalloc.api.meta.NODES"),
            (5, "devalloc.a.b"),
        ]
    ]


def test_modules_that_a_package_does_not_have_are_reported(tmp_path: Path) -> None:
    (tmp_path / "here.py").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "__init__.py").write_text(
        '"""With ``no_list``.\n\n- ``here``, ``gone``: one\n  and ``lost``\n- ``below``: two\n- three ``none``\n"""\n'
    )
    assert absent_modules(tmp_path) == ["gone", "lost"]


def test_decisions_are_listed_in_order() -> None:
    """Each once, with its title, and by number within its subject."""
    rows = re.findall(
        r"^\| (.*?) ?\| \[(\d{4})\]\((.+?)\) (.+) \|$",
        (REPO / "docs/development/decisions/README.md").read_text(),
        re.M,
    )
    records = {
        path.name: path.read_text().split("\n")[0] for path in (REPO / "docs/development/decisions").glob("0*.md")
    }
    assert {file: f"# {number} {title}" for _, number, file, title in rows} == records
    assert len(rows) == len(records)
    last = ""
    for subject, number, *_ in rows:
        assert subject or number > last, f"{number} is listed after {last}"
        last = number


def modules_of_row(row: str) -> set[str]:
    """The modules of ours that a row of a table names, without tests and documents."""
    named = re.findall(r"`([\w/*.\-]+\.py)`", row)
    return {name for name in named if not name.startswith(("tests/", "docs/"))}


def test_tasks_need_few_modules() -> None:
    rows = (REPO / "docs/development/where-to-change.md").read_text().split("\n")
    large = [row.split("|")[1].strip() for row in rows if len(modules_of_row(row)) > 5]
    assert len(large) <= MANY_MODULES, large
