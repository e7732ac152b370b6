"""Command-line options that several verbs have, with their label selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from devalloc.cli.command import _RECURSIVE, BadInput, SettingOption, WholeNumber, reported, require_packages
from devalloc.cli.render.output import FORMATS
from devalloc.programs.settings import CEL_CHECK, PLACEMENT, STORE
from devalloc.settings import (
    OneOf,
    PathTo,
    Setting,
    Whole,
    build,
    declared,
    parse_duration,
    settings_of,
    settings_with_classes,
)

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def settings_options(settings_class: type[Any], name: str = "settings") -> Decorator:
    """The options of a settings class, passed together as ``name: settings_class``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        listed = settings_with_classes(settings_class)

        @wraps(function)
        def with_settings(**values: Any) -> Any:
            given = {each.parameter: values.pop(each.parameter) for each, _ in listed}
            return function(**{name: build(settings_class, given)}, **values)

        decorated: Callable[..., Any] = with_settings
        for each, declaring in reversed(listed):
            decorated = option(each, None if declaring is settings_class else declaring)(decorated)
        return decorated

    return decorate


def passed_as(name: str, together: type[Any]) -> Decorator:
    """Pass the options and arguments that a dataclass has fields for together, as ``name: together``. Below them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def with_one(**values: Any) -> Any:
            given = {each.name: values.pop(each.name) for each in fields(together)}
            return function(**{name: together(**given)}, **values)

        return with_one

    return decorate


def option_of(settings_class: type[Any], parameter: str) -> Decorator:
    """One option of a settings class, passed as ``parameter``."""
    return option(next(each for each in settings_of(settings_class) if each.parameter == parameter))


def option(setting: Setting, settings_class: type[Any] | None = None) -> Decorator:
    """The option of a setting, passed under the name of its parameter. The help lists it with those of its class."""
    kind: dict[str, Any] = {"is_flag": True} if setting.is_switch else {"multiple": setting.is_repeatable}
    return click.option(
        setting.flag,
        setting.parameter,
        type=_type(setting.type),
        default=setting.default,
        metavar=setting.metavar,
        envvar=setting.env or None,
        help=setting.full_help,
        show_default=False if setting.unset else None,  # the help has it
        cls=SettingOption,
        settings_class=settings_class,
        usual=setting.usual,
        **kind,
    )


def _type(read: Any) -> Any:
    """The type of click that reads as the setting does, and completes paths and words."""
    match read:
        case OneOf(words, is_open):
            return _OpenChoice(list(words)) if is_open else click.Choice(list(words))
        case Whole(least, most):
            return WholeNumber(least, most)
        case PathTo(what, exists):
            checks: dict[str, Any] = {"file_okay": what != "folder", "dir_okay": what != "file", "exists": exists}
            return click.Path(path_type=Path, readable=what != "any", **checks)
        case None | type():
            return read
    return reported(read)


class _OpenChoice(click.Choice[str]):
    """Words for the help and for completion: others may be valid, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


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


store_option = option(STORE)
"""--store PATH, passed as ``store: Path | None``."""
ANSWER_DEADLINE = Setting(
    "Answer within this time, such as 10s, with the best solution found by then.",
    flag="--deadline",
    type=parse_duration,
    metavar="DURATION",
    unset="no limit",
)


def node_state_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--node-state DIR, passed as ``node_state: Path | None``."""
    return click.option(
        "--node-state",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        envvar="DEVALLOC_NODE_STATE",
        help="The node plugin's state folder [env: DEVALLOC_NODE_STATE; default: node beside the store].",
    )(function)


def output_option(*forms: str, default: str = "table") -> Decorator:
    """-o FORM, passed as ``output: str``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms or FORMATS),
        default=default,
        help="Output format.",
    )


class _FormOrJsonpath(click.Choice[str]):
    """One of the forms, a template (jsonpath=…), or columns (custom-columns=…)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str) and value.startswith(("jsonpath=", "custom-columns=")):
            return value
        if isinstance(value, str) and value not in self.choices:
            forms = f"{', '.join(self.choices)}, jsonpath=TEMPLATE and custom-columns=HEADER:PATH,..."
            self.fail(f"{value!r} is not one of {forms}", param, ctx)
        return super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.choices)}|jsonpath=TEMPLATE|custom-columns=HEADER:PATH,...]"


def output_option_with_jsonpath(function: Callable[..., Any]) -> Callable[..., Any]:
    """-o FORM or jsonpath=TEMPLATE, passed as ``output: str``."""
    what = (
        "Output format; the last two as in kubectl, such as jsonpath='{.items[*].metadata.name}' and "
        "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName."
    )
    return click.option("-o", "--output", type=_FormOrJsonpath(FORMATS), default="table", help=what)(function)


def namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-n NAMESPACE, passed as ``namespace: str``."""
    return click.option(
        "-n",
        "--namespace",
        default="default",
        metavar="NAME",
        envvar="DEVALLOC_NAMESPACE",
        help="Namespace of claims and configs.",
    )(function)


def all_namespaces_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """-A, passed as ``all_namespaces: bool``."""
    return click.option("-A", "--all-namespaces", is_flag=True, help="Use all namespaces.")(function)


def no_headers_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--no-headers, passed as ``no_headers: bool``."""
    return click.option("--no-headers", is_flag=True, help="Print tables without the header line.")(function)


def files_option(*, required: bool, help: str = "") -> Decorator:
    """-f PATH, repeatable, passed as ``files: tuple[str, ...]``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        files = click.option(
            "-f",
            "--filename",
            "files",
            multiple=True,
            required=required,
            metavar="PATH",
            help=help or "A manifest file, a folder of them, or - for stdin. Repeatable.",
        )
        recursive = click.option(
            "-R",
            "--recursive",
            is_flag=True,
            expose_value=False,
            callback=_note_recursive,
            help="Also read subfolders.",
        )
        return files(recursive(function))

    return decorate


def _note_recursive(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    ctx.meta[_RECURSIVE] = wanted


def manifests_option(*, required: bool) -> Decorator:
    """-f PATH, repeatable, or plain PATHs, passed as ``files: tuple[str, ...]``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def together(*of: Any, files: tuple[str, ...], paths: tuple[str, ...], **more: Any) -> Any:
            if required and not (files or paths):
                raise click.UsageError("name the manifests: -f PATH, a file, a folder or - for stdin")
            return function(*of, files=(*files, *paths), **more)

        argument = click.argument("paths", nargs=-1, metavar="[PATH]...")
        return argument(files_option(required=False)(together))

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """How the solver answers."""

    placement: str = declared(PLACEMENT)
    deadline: float | None = declared(ANSWER_DEADLINE)
    cel_check: str = declared(CEL_CHECK)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOptions:
    """How the solver counts."""

    deadline: float | None = declared(ANSWER_DEADLINE)
    cel_check: str = declared(CEL_CHECK)


@contextmanager
def tracing(endpoint: str | None, service: str, instance: str) -> Iterator[None]:
    """Send traces of claims from inside, if there is an endpoint. Raises BadInput, CommandFailed."""
    if endpoint is None:
        yield
        return
    if not re.fullmatch(r"https?://[!-~]+", endpoint):
        raise BadInput(
            f"--otlp-endpoint: {endpoint[:60]!r} is not an http or https URL; give one such as http://collector:4318"
        )
    require_packages("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    from devalloc.tracing import start_tracing

    stop = start_tracing(endpoint, service, instance)
    try:
        yield
    finally:
        stop()
