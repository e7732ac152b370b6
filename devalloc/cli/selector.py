"""Label selectors, as in kubectl: ``app=web,tier!=test,env in (a, b),!old``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

_REQUIREMENT = re.compile(
    r"(?P<absent>!)?\s*(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)\s*"
    r"(?:(?P<operator>==|=|!=)\s*(?P<value>[A-Za-z0-9._-]*)|\s(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?\s*"
)
LabelTest = Callable[[Mapping[str, Any]], bool]
"""Tells whether an object is selected."""


def parse_selector(text: str) -> LabelTest:
    """The test of a selector. Raises BadParameter."""
    tests = [_requirement(part) for part in _parts(text)]
    return lambda obj: all(test(obj["metadata"].get("labels") or {}) for test in tests)


def _parts(text: str) -> list[str]:
    """Split at commas, but not inside parentheses."""
    parts = re.split(r",(?![^()]*\))", text)
    return [part.strip() for part in parts] if text.strip() else []


def _requirement(text: str) -> LabelTest:
    match = _REQUIREMENT.fullmatch(text)
    if match is None or (match["absent"] and (match["operator"] or match["word"])):
        raise click.BadParameter(
            f"invalid selector {text!r}; write it like app=web, app!=web, app in (a, b), app or !app", param_hint="-l"
        )
    key = match["key"]
    if match["operator"]:
        wanted, is_equal = match["value"], match["operator"] != "!="
        return lambda labels: (labels.get(key) == wanted) is is_equal
    if match["word"]:
        values, is_in = {value.strip() for value in match["values"].split(",")}, match["word"] == "in"
        return lambda labels: (labels.get(key) in values) is is_in
    is_there = not match["absent"]
    return lambda labels: (key in labels) is is_there


def selector_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-l SELECTOR, passed as ``selected: Test | None``."""
    return click.option(
        "-l",
        "--selector",
        "selected",
        metavar="SELECTOR",
        callback=lambda ctx, param, text: None if text is None else parse_selector(text),
        help="Only objects with these labels, such as app=web,tier!=test.",
    )(function)
