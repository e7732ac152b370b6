"""``make lint`` refuses docstrings that name what nothing has, and takes code spans that are something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import docstring_names
from tools.docstring_names import Repository, read_module

LIBRARY = '''
"""Errors and a class of the same package."""
from abc import ABC

class StoreError(Exception): ...
class NotFound(StoreError): ...
class Reply: ...

class Shelf(Base):
    labels: dict[str, str]
    def __init__(self, size):
        self.size = size
    def put(self, item): ...

class Base(ABC):
    def close(self): ...

WEIGHT = 2
REASON = "DeviceInUse"
'''
USER = '''
import click
from package.library import NotFound, Shelf
import package.library as library

def take(shelf, number_of_items):
    """DOCSTRING"""
    return f"package_metric_{shelf}" + "items" + click.BadParameter
'''


def complaints(docstring: str) -> list[str]:
    """What is wrong with a docstring of a module that imports another."""
    sources = {"package": "", "package.library": LIBRARY, "package.user": USER.replace("DOCSTRING", docstring)}
    sources["package.unrelated"] = "class Elsewhere(Exception): ..."
    modules = {name: read_module(Path(f"{name}.py"), name, text) for name, text in sources.items()}
    repository = Repository(modules, {"metav1": "a package"}, frozenset({"spec"}))
    return docstring_names.complaints(modules["package.user"], repository)


@pytest.mark.parametrize(
    "docstring",
    [
        "Take ``number_of_items``.",
        "A ``Shelf``, or what ``Shelf.put`` and ``Shelf.labels`` say.",
        "Sets ``Shelf.size``, then calls ``Shelf.close()``.",
        "See ``library.WEIGHT``, ``package.library`` and ``package.library.Shelf.put``.",
        "See ``WEIGHT`` and ``put``.",
        "``shelf.labels`` of the parameter.",
        "As ``click.echo`` and ``dataclasses.replace`` do.",
        "A ``metav1.Condition``.",
        "``take(shelf, 3)``, or ``None``.",
    ],
)
def test_a_name_that_is_defined_passes(docstring: str) -> None:
    assert complaints(docstring) == []


@pytest.mark.parametrize(
    "docstring",
    [
        "The reason is ``DeviceInUse``.",
        "``spec.items`` and ``spec.nodeName`` of a claim.",
        "Writes ``pools.yaml`` and ``console.log``.",
        "The metric ``package_metric_items_total``.",
        "``devalloc get pods``, ``-o json``, ``a/b`` and ``{count}``.",
        "A pod named ``NAME.run``.",
    ],
)
def test_a_span_that_is_something_else_passes(docstring: str) -> None:
    assert complaints(docstring) == []


@pytest.mark.parametrize(
    ("docstring", "name"),
    [
        ("An ``Oven``.", "Oven"),
        ("See ``number_of_shelves``.", "number_of_shelves"),
        ("See `number_of_shelves`.", "number_of_shelves"),
        ("Calls ``Shelf.drop``.", "Shelf.drop"),
        ("Calls ``Shelf.drop(3)``.", "Shelf.drop"),
        ("See ``library.LENGTH``.", "library.LENGTH"),
        ("See ``interfaces.Shelf``.", "interfaces.Shelf"),
        ("See ``package.library.Oven``.", "package.library.Oven"),
        ("See ``OVEN``.", "OVEN"),
    ],
)
def test_a_name_that_nothing_has_is_refused(docstring: str, name: str) -> None:
    assert complaints(docstring) == [f"package.user.py:7: {name}: nothing has this name"]


@pytest.mark.parametrize(
    "docstring",
    [
        "Raises NotFound.",
        "Raises NotFound if it is gone, and StoreError.",
        "Raises ValueError, OSError: the file is gone.",
        "Raises BadParameter.",
        "Raises ``NotFound``.",
        "Raises library.StoreError.",
        "Raises what ``put`` does, nothing, or None.",
        "Raises NotFound, as Kubernetes' own client does. Oven is a word of the next sentence, and Elsewhere is too.",
        "Take it.\n\n    Raises:\n        NotFound: if it is gone.\n            Oven: a continued line.\n",
    ],
)
def test_an_error_that_the_module_can_see_passes(docstring: str) -> None:
    assert complaints(docstring) == []


@pytest.mark.parametrize(
    ("docstring", "name"),
    [
        ("Raises Lost.", "Lost"),
        ("Raise Lost unless it is there.", "Lost"),
        ("Raises NotFound if it is gone, or Lost.", "Lost"),
        ("Raises NotFound; Lost when it is late.", "Lost"),
        ("Raises Elsewhere, of a module that is not imported.", "Elsewhere"),
        ("Take it.\n\n    Raises:\n        Lost: if it is gone.\n", "Lost"),
    ],
)
def test_an_error_that_the_module_cannot_see_is_refused(docstring: str, name: str) -> None:
    (line,) = complaints(docstring)
    assert line.endswith(f": {name}: not an error of this module or of what it imports")


def test_a_class_that_is_not_an_error_is_refused_after_raises() -> None:
    assert complaints("Raises Shelf.") == ["package.user.py:7: Shelf: not an error"]


def test_a_dotted_error_must_exist_as_well() -> None:
    assert complaints("Raises library.Lost.") == [
        "package.user.py:7: library.Lost: no such error",
    ]


def test_the_line_is_that_of_the_name() -> None:
    (line,) = complaints("First.\n\n    Then ``Oven``.")
    assert line.startswith("package.user.py:9: Oven")


def test_docstrings_below_fields_are_read() -> None:
    module = read_module(Path("m.py"), "m", 'class A:\n    size: int = 0\n    """Of an ``Oven``."""\n')
    assert docstring_names.complaints(module, Repository({"m": module})) == ["m.py:3: Oven: nothing has this name"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("devalloc/cli/main.py", "devalloc.cli.main"),
        ("solver/devalloc_solver/__init__.py", "devalloc_solver"),
        ("node-plugin/devalloc_node/daemon.py", "devalloc_node.daemon"),
        ("tests/support/waiting.py", "tests.support.waiting"),
    ],
)
def test_a_module_has_the_name_that_it_is_imported_by(path: str, name: str) -> None:
    assert docstring_names.module_name(Path(path)) == name
