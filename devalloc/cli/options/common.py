"""Command-line options that several verbs have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from devalloc.cli.render.output import FORMATS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


_RECURSIVE = "devalloc.recursive"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Seconds, written as 30s, 5m, 1h30m, 500ms or a plain number."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    else:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise click.BadParameter(f"invalid duration {text!r}; write it like 30s, 5m, 1h30m or 500ms")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not math.isfinite(seconds):
        raise click.BadParameter("the duration is too long; give fewer digits")
    return seconds


def store_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--store PATH, passed as ``store: Path | None``."""
    return click.option(
        "--store",
        type=click.Path(path_type=Path),
        metavar="PATH",
        envvar="DEVALLOC_STORE",
        help="File of the embedded store [env: DEVALLOC_STORE; default: /var/lib/devalloc/devalloc.db for root, "
        "else ~/.local/state/devalloc/devalloc.db].",
    )(function)


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
    """One of the forms, or a template: jsonpath=…"""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str) and value.startswith("jsonpath="):
            return value
        if isinstance(value, str) and value not in self.choices and "=" in value:
            self.fail(f"{value!r} is not one of {', '.join(self.choices)} and jsonpath=TEMPLATE", param, ctx)
        return super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.choices)}|jsonpath=TEMPLATE]"


def output_option_with_jsonpath(function: Callable[..., Any]) -> Callable[..., Any]:
    """-o FORM or jsonpath=TEMPLATE, passed as ``output: str``."""
    what = "Output format; jsonpath as in kubectl, such as jsonpath='{.items[*].metadata.name}'."
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


def is_recursive() -> bool:
    """Whether the current command reads subfolders, too (``files_option``)."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_RECURSIVE))


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


def placement_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--placement, passed as ``placement: str``."""
    return click.option(
        "--placement",
        type=click.Choice(["pack", "spread"]),
        default="pack",
        help="Among equally good answers: fill nodes that are in use, or prefer nodes with the fewest devices in use.",
    )(function)


def deadline_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--deadline, passed as ``deadline: float | None`` in seconds."""
    return click.option(
        "--deadline",
        type=parse_duration,
        metavar="DURATION",
        help="Answer within this time, such as 10s, with the best solution found by then [default: no limit].",
    )(function)


def inventory_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--sysfs-root, --node-name, --adopt, --kind, --max-vfs and --allow-shared-groups, passed under those names."""
    for option in (
        click.option(
            "--allow-shared-groups",
            is_flag=True,
            help="Offer devices whose IOMMU group contains devices of other slots; a machine gets the whole group.",
        ),
        click.option(
            "--max-vfs",
            type=click.IntRange(min=0),
            metavar="NUMBER",
            help="Maximum virtual functions to offer per port if none exist yet [default: all that it supports].",
        ),
        click.option(
            "--kind",
            "kinds",
            multiple=True,
            type=click.Choice(["gpu", "nic", "accelerator", "storage", "display"]),
            help="Only devices of this kind. Repeatable [default: all kinds].",
        ),
        click.option(
            "--adopt",
            "adopted",
            multiple=True,
            metavar="mdev-UUID",
            help="Offer this vGPU, which another program created, while it is unused. Repeatable.",
        ),
        click.option("--node-name", metavar="NAME", help="The node of the pools [default: the host name]."),
        click.option(
            "--sysfs-root",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            default=Path("/"),
            metavar="DIR",
            help="Read this tree instead of the host's: the folder that contains sys, or the sys folder itself.",
        ),
    ):
        function = option(function)
    return function
