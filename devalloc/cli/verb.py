"""What all verbs share: how they log, and how their errors reach people."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable
from typing import Any

import click

LEVELS = ("debug", "info", "warning", "error")


class Failed(click.ClickException):
    """It did not work: exit code 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.format_message()}", err=True)


class BadInput(Failed):
    """What was given makes no sense: exit code 2."""

    exit_code = 2


class Verb(click.Command):
    """A command whose errors are one line that says what, where and what to do. Its function returns the exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--debug"], is_flag=True, envvar="DEVALLOC_DEBUG", help="Show tracebacks."),
            click.Option(
                ["--log-format"],
                type=click.Choice(["plain", "json"]),
                default="plain",
                envvar="DEVALLOC_LOG_FORMAT",
                help="How log lines are written to stderr.",
            ),
            click.Option(
                ["--log-level"],
                type=click.Choice(LEVELS),
                default="warning",
                envvar="DEVALLOC_LOG_LEVEL",
                help="The least that is logged.",
            ),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        debug = ctx.params.pop("debug")
        _log_to_stderr(ctx.params.pop("log_format"), ctx.params.pop("log_level"))
        try:
            code = super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if debug:
                raise
            raise translated(error) from error
        # Also tell click when it runs by itself, as its test runner makes it.
        if code:
            ctx.exit(code)
        return 0


def translated(error: Exception) -> click.ClickException:
    """The error as users see it."""
    from devalloc.store.errors import Invalid, StoreError

    if isinstance(error, Invalid):
        return BadInput(str(error))
    if isinstance(error, StoreError):
        return Failed(str(error))
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("devalloc."):
        return Failed(f"the Python package {error.name!r} is missing; install it with: pip install {_with(error.name)}")
    if isinstance(error, OSError) and error.filename is not None:
        return Failed(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
        return Failed(f"the output could not be written: {error.strerror}")
    return Failed(f"this is a bug in devalloc: {type(error).__name__}: {error} (--debug shows where; please report it)")


_EXTRAS = {
    "node": ("grpc", "grpc_health", "grpc_reflection", "google.protobuf", "pyroute2", "pyudev", "qemu"),
    "permits": ("aiohttp", "prometheus_client"),
    "guest": ("websockets", "h11"),
    "kubernetes": ("kubernetes",),
    "controller": ("cryptography",),
}
"""Packages that come with an extra of the distribution."""


def _with(package: str) -> str:
    """What brings a package, as pip wants it."""
    for extra, packages in _EXTRAS.items():
        if any(package == name or package.startswith(f"{name}.") for name in packages):
            return f"'devalloc[{extra}]'"
    return "devalloc"


def need(*packages: str) -> None:
    """Raises Failed, with what to install, before anything is printed that would end half-way."""
    import importlib

    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise translated(error) from error


def verb(name: str, **settings: Any) -> Callable[[Callable[..., int | None]], Verb]:
    """Make a function a verb."""
    return click.command(name, cls=Verb, **settings)


def _log_to_stderr(form: str, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        from devalloc.cli.logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
