"""Citations of rules lead to rules: ``(S17)`` in code, tests and guides is a heading of ``docs/development/spec``.

What counts as a citation:

* in comments and docstrings of Python, and in Markdown outside code: each number of the form of a rule, unless it is
  the name of a GPU (``names_of_gpus``);
* in other texts of Python, and in YAML: numbers that stand alone in parentheses, as in ``(S16, S18)``, and in the
  cases of ``tests/conformance/cases`` the number that a name begins with.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.repository import REPO

SPEC = REPO / "docs/development/spec"
CODE = ("devalloc", "solver", "node-plugin", "tests", "benchmarks", "deploy", "crds", "examples", "docs")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")

RULE = r"[STLDI]\d{1,2}[a-z]?"
_HEADING = re.compile(rf"^#{{2,4}} ({RULE})\b", re.MULTILINE)
_LIKE_A_RULE = re.compile(rf"(?<![\w.\-/]){RULE}(?![\w/]|-(?!{RULE}\b)|\.\w)|(?<=\d-){RULE}\b")
_MAY_BE_A_RULE = re.compile(rf"(?:(?<!\w)|(?<=\\\w)){RULE}(?!\w)")
"""Also after an escape: ``\\nS17``. Most modules have none, and need not be parsed."""
_RANGE = re.compile(rf"\b({RULE})(?: to |-)({RULE})\b")
_ALONE = re.compile(rf"\(({RULE}(?:(?:, | and | to |-){RULE})*)\)")
_NAME_OF_CASE = re.compile(rf"^- name: ({RULE})\b", re.MULTILINE)

_GPU = r"(?:T4|L4|A2|A10|A16|A100|L40S?|H100|H200)"
_GPUS = re.compile(rf"(?:(?:NVIDIA|Tesla|GRID) )?\b{_GPU}(?:(?:, | and | or ){_GPU})*\b")
_CODE_OF_MARKDOWN = re.compile(r"^( *)```.*?^\1```|(`+)(?!`).+?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"``.+?``", re.DOTALL)


class Citation(NamedTuple):
    place: str
    """FILE:LINE"""
    rule: str


def names_of_gpus(text: str) -> Iterator[re.Match[str]]:
    """Where GPUs are meant. ``L4`` is no rule and never becomes one; ``T4`` is a GPU after the name of its vendor, and
    in a list with others."""
    return (match for match in _GPUS.finditer(text) if match[0] != "T4")


def cited(text: str) -> Iterator[tuple[int, str]]:
    """The rules that a text for people cites, each with its offset. Of a range all that lie between count, too."""
    for match in [*names_of_gpus(text)]:
        text = text[: match.start()] + " " * len(match[0]) + text[match.end() :]
    for match in _LIKE_A_RULE.finditer(text):
        yield match.start(), match[0]
    for match in _RANGE.finditer(text):
        yield from ((match.start(), rule) for rule in _between(match[1], match[2]))


def cited_alone(text: str) -> Iterator[tuple[int, str]]:
    """The same for a text that may have anything else in it: numbers alone in parentheses."""
    for match in _ALONE.finditer(text):
        yield from ((match.start() + offset, rule) for offset, rule in cited(match[1]))


def _between(first: str, last: str) -> Iterator[str]:
    begins, ends = (int(rule[1:].rstrip("abc")) for rule in (first, last))
    if first[0] == last[0]:
        yield from (f"{first[0]}{number}" for number in range(begins + 1, ends))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """The text without what the pattern finds; lines and offsets stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """(line, rule)"""
    prose = _blank(_CODE_OF_MARKDOWN, text)
    return ((prose.count("\n", 0, offset) + 1, rule) for offset, rule in cited(prose))


def of_yaml(text: str) -> Iterator[tuple[int, str]]:
    """(line, rule)"""
    names = ((match.start(1), match[1]) for match in _NAME_OF_CASE.finditer(text))
    return ((text.count("\n", 0, offset) + 1, rule) for offset, rule in (*cited_alone(text), *names))


def of_python(source: str) -> Iterator[tuple[int, str]]:
    """(line, rule)"""
    if _MAY_BE_A_RULE.search(source) is None:
        return
    nodes = [*ast.walk(ast.parse(source))]
    bodies = (body for node in nodes if isinstance(body := getattr(node, "body", None), list))
    docstrings = {id(line.value) for body in bodies for line in body if isinstance(line, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            rules = cited(_blank(_LITERAL, text)) if id(node) in docstrings else cited_alone(text)
            yield from ((node.lineno + text.count("\n", 0, offset), rule) for offset, rule in rules)
    if re.search(rf"#.*{RULE}", source):
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield from ((token.start[0], rule) for _, rule in cited(_blank(_LITERAL, token.string)))


READERS = {".py": of_python, ".md": of_markdown, ".yaml": of_yaml}


def files() -> Iterator[Path]:
    """What may cite a rule."""
    yield from sorted(REPO.glob("*.md"))
    for folder in CODE:
        for path in sorted((REPO / folder).rglob("*")):
            if path.suffix in READERS and GENERATED.search(path.name) is None:
                yield path


def citations(paths: Iterable[Path]) -> list[Citation]:
    return [
        Citation(f"{path.relative_to(REPO)}:{line}", rule)
        for path in paths
        for line, rule in READERS[path.suffix](path.read_text())
    ]


def definitions() -> list[tuple[str, str]]:
    """(rule, page) of each heading."""
    return [
        (match[1], page.name) for page in sorted(SPEC.glob("*.md")) for match in _HEADING.finditer(page.read_text())
    ]


def test_no_rule_is_defined_twice() -> None:
    assert {rule: count for rule, count in Counter(rule for rule, _ in definitions()).items() if count > 1} == {}


def test_every_citation_leads_to_a_rule() -> None:
    rules, cites = {rule for rule, _ in definitions()}, citations(files())
    assert [f"{place} cites {rule}" for place, rule in cites if rule not in rules] == []
    # Else nothing was read: the solver alone has more.
    assert len(cites) > 500


def test_the_index_names_every_rule_and_links_to_its_page() -> None:
    lines = (SPEC / "README.md").read_text().splitlines()
    index = [match.groups() for line in lines if (match := re.match(rf"\| \[({RULE})\]\(([\w-]+\.md)#", line))]
    assert sorted(index) == sorted(definitions())


def test_no_rule_has_the_name_of_a_gpu_that_is_never_one() -> None:
    assert "L4" not in {rule for rule, _ in definitions()}


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("no device twice (S10, S13)", ["S10", "S13"]),
        ("goals 3 and 4 of S17.", ["S17"]),
        ("as settled I4 and T20 say", ["I4", "T20"]),
        ("units (S7 to S10)", ["S7", "S10", "S8", "S9"]),
        ("units (T3-T5, T7)", ["T3", "T5", "T7", "T4"]),
        ("each of [S12a](claims.md#s12a-compatibility)", ["S12a"]),
        ("reserved for the host (T4)", ["T4"]),
        ("two L4 on one node", []),
        ("an NVIDIA T4 with vGPUs of GRID T4-4Q", []),
        ("T4, A2, L4", []),
        ("2026-01-31T00:00:00Z, a VT100, I2C, node-S3, T4-4Q", []),
    ],
)
def test_citations_differ_from_other_names(text: str, rules: list[str]) -> None:
    assert [rule for _, rule in cited(text)] == rules


def test_code_cites_nothing_but_in_comments_docstrings_and_parentheses() -> None:
    source = '''"""A rule (S1)."""
D1 = "D2"  # and another one: S3
"""As ``D4`` not, as T5 yes."""
print(f"{D1} is wrong (S6, S7)", "S8 (see S9)")
'''
    assert sorted(of_python(source)) == [(1, "S1"), (2, "S3"), (3, "T5"), (4, "S6"), (4, "S7")]


def test_guides_cite_nothing_in_code() -> None:
    text = "See `S1` and (S2).\n\n```\nS3\n```\n\n| T9 | ``S4`` |\n"
    assert [*of_markdown(text)] == [(1, "S2"), (7, "T9")]


def test_manifests_cite_in_parentheses_and_cases_in_their_names() -> None:
    text = "# of its node (T30), and S1\n- name: S2 two nodes (S4a)\n  size: L3\n"
    assert sorted(of_yaml(text)) == [(1, "T30"), (2, "S2"), (2, "S4a")]
