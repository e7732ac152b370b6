"""What all verbs share: how they log, and how their errors reach people."""

from __future__ import annotations

import errno
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

LEVELS = ("debug", "info", "warning", "error")


_FROM_KUBECTL = {
    "--context": "the kubeconfig says which: `kubectl config use-context NAME`, or --kubeconfig PATH for another one",
    "-k": "write: kubectl kustomize DIR | devalloc apply -f -",
    "--kustomize": "write: kubectl kustomize DIR | devalloc apply -f -",
    "--timeout": "this verb does not wait: devalloc wait KIND/NAME --timeout DURATION",
    "--wait": "this verb does not wait: devalloc wait KIND/NAME",
    "--as": "the kubeconfig says who asks: --kubeconfig PATH for another one",
    "--server": "the kubeconfig says which: --kubeconfig PATH",
}
"""Options of kubectl that most verbs do not have, and what to do instead."""
_PATH = re.compile(r"\b(PATH|DIR|FILE)\b")
"""How options that are read by a function of ours, not by click, show that they are paths."""
_INVALID_CHOICE = re.compile(r"'(.*)' is not one of", re.DOTALL)


class Failed(click.ClickException):
    """It did not work: exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        from devalloc.cli.logs import is_json

        super().__init__(message)
        self._in_json = is_json()  # of the command that fails, whose log has ended when this is shown

    def show(self, file: Any = None) -> None:
        from devalloc.cli.logs import json_line

        text = self.format_message()
        click.echo(json_line(logging.ERROR, text) if self._in_json else f"error: {text}", err=True)


class BadInput(Failed):
    """What was given makes no sense: exit code 2."""

    exit_code = 2


class Verbs(click.Group):
    """A group of verbs, which says what to write instead of a verb that it does not have."""

    def __init__(
        self,
        *args: Any,
        other_words: Mapping[str, str] | None = None,
        advice: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """``other_words``: what people write who know other commands, and the verb that does it here. ``advice``: what
        else they write, and a sentence with what to do."""
        super().__init__(*args, **kwargs)
        self._other_words, self._advice = other_words or {}, advice or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if not name.startswith("-") and name not in self.list_commands(ctx):
            from devalloc.api.nearest import nearest

            above = "" if ctx.parent is None else f"{ctx.info_name} "
            advice = self._advice.get(name)
            if advice is None:
                near = self._other_words.get(name) or nearest(name, self.list_commands(ctx))
                listed = f"`{ctx.command_path} --help` lists them"
                advice = f"did you mean `{above}{near}`?" if near else f"{listed}."
            ctx.fail(f"There is no verb `{above}{name}`; {advice}")
        return super().resolve_command(ctx, args)


class Verb(click.Command):
    """A command whose errors are one line that says what, where and what to do. Its function returns the exit code."""

    def __init__(self, *args: Any, advice: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """``advice``: what to do instead of what was written, by option, and by "" for words too many."""
        super().__init__(*args, **kwargs)
        self._advice = {**_FROM_KUBECTL, **(advice or {})}
        self.params += [
            click.Option(["--debug"], is_flag=True, envvar="DEVALLOC_DEBUG", help="Show tracebacks."),
            click.Option(
                ["--log-format"],
                type=click.Choice(["plain", "json"]),
                default="plain",
                envvar="DEVALLOC_LOG_FORMAT",
                help="How log lines are written to stderr; with json also what verbs that go on say, and errors.",
            ),
            click.Option(
                ["--log-level"],
                type=click.Choice(LEVELS),
                default="warning",
                envvar="DEVALLOC_LOG_LEVEL",
                help="The least that is logged.",
            ),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            may_be_empty = "" in args or any(arg.endswith("=") for arg in args)
            if may_be_empty and not ctx.resilient_parsing:  # completion reports nothing
                self._refuse_empty_paths(ctx, args)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not (advice := self._advice_on(error)):
                raise
            raise click.UsageError(f"{error.format_message().removesuffix('.')}; {advice}", ctx) from error

    def _refuse_empty_paths(self, ctx: click.Context, args: list[str]) -> None:
        """An empty path would be the current folder: `delete -f "$FILE"` with a variable that is not set.

        This is done here for every option and word, and before click makes '' the same Path as '.'.
        """
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in order:
            values = given.get(param.name)
            if takes_path(param) and (values == "" or (isinstance(values, list | tuple) and "" in values)):
                advice = "; for the current folder write '.'" if _takes_folder(param) else ""
                raise click.BadParameter(f"the path is empty{advice}", ctx, param)

    def _advice_on(self, error: click.UsageError) -> str | None:
        """What to do about it, where click does not say."""
        if isinstance(error, click.NoSuchOption):
            return self._advice.get(error.option_name)
        if isinstance(error, click.BadOptionUsage) and "does not take a value" in error.message:
            return f"write {error.option_name} alone"
        if isinstance(error, click.MissingParameter):
            lines = (line.strip() for line in (self.help or "").splitlines())
            example = next((line for line in lines if line.startswith("devalloc ")), None)
            return f"for example: {example}" if example else None
        if isinstance(error, click.BadParameter):
            kind, written = error.param and error.param.type, _INVALID_CHOICE.match(error.message)
            if isinstance(kind, click.Choice) and written:
                from devalloc.api.nearest import nearest

                near = nearest(written[1], map(str, kind.choices))
                return near and f"did you mean {near}?"
            return None
        return self._advice.get("") if "unexpected extra argument" in error.message else None

    def invoke(self, ctx: click.Context) -> Any:
        debug = ctx.params.pop("debug")
        with _logging_to_stderr(ctx.params.pop("log_format"), ctx.params.pop("log_level")):
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


def takes_path(param: click.Parameter) -> bool:
    """Whether it is a file or folder. One whose default is "" may be empty, which means none."""
    names_one = _PATH.search(param.metavar or "") is not None
    return (isinstance(param.type, click.Path) or names_one) and param.default != ""


def _takes_folder(param: click.Parameter) -> bool:
    kind = param.type
    return not kind.file_okay if isinstance(kind, click.Path) else "FILE" not in (param.metavar or "")


def translated(error: Exception) -> click.ClickException:
    """The error as users see it."""
    from devalloc.store.errors import Invalid, StoreError, is_disk_full

    if isinstance(error, Invalid):
        return BadInput(str(error))
    if isinstance(error, StoreError):
        return Failed(str(error))
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("devalloc."):
        return Failed(f"the Python package {error.name!r} is missing; install it with: pip install {_with(error.name)}")
    if isinstance(error, OSError) and error.filename is not None:
        return Failed(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and (is_disk_full(error) or error.errno == errno.EIO):
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


@contextmanager
def _logging_to_stderr(form: str, level: str) -> Iterator[None]:
    """A process that goes on after a command, as one of tests does, may close the stderr that the command had."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        from devalloc.cli.logs import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    root = logging.getLogger()
    handlers, threshold = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(threshold)
