"""The base of all verbs: how they log, and how their errors reach people. Programs get log lines as JSON objects."""

from __future__ import annotations

import errno
import importlib
import json
import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

import devalloc.settings
from devalloc.cli.terminal import print_lines, print_note
from devalloc.plugins import BadPackage
from devalloc.printable import printable, printable_lines
from devalloc.program import ProgramFailed
from devalloc.settings import BadSetting, summary_of, title_of

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time`` (RFC 3339), ``level``, ``logger``, ``message``, the fields of ``extra``, and ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """For people: one line for each message, whatever objects and guests have written into it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        line = logging.makeLogRecord(vars(record))
        line.msg, line.args = printable(record.getMessage()), None
        return super().format(line)

    def formatException(self, ei: Any) -> str:  # noqa: N802, the base class calls it so
        """The traceback, in which the error's own text can be that of an object, too."""
        return printable_lines(super().formatException(ei))


def is_json() -> bool:
    """Whether this process logs JSON (``--log-format json``)."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def json_line(level: int, message: str) -> str:
    """A line that is printed at every log level."""
    return JsonFormatter().format(logging.LogRecord("devalloc", level, "", 0, message, None, None))


LEVELS = ("debug", "info", "warning", "error")


_FROM_KUBECTL = {
    "--context": "this verb uses no cluster",
    "--kubeconfig": "this verb uses no cluster",
    "-k": "use: kubectl kustomize DIR | devalloc apply -f -",
    "--kustomize": "use: kubectl kustomize DIR | devalloc apply -f -",
    "--timeout": "this verb does not wait: devalloc wait KIND/NAME --timeout DURATION",
    "--wait": "this verb does not wait: devalloc wait KIND/NAME",
    "--as": "the kubeconfig selects the user: --kubeconfig PATH for another one",
    "--server": "the kubeconfig selects it: --kubeconfig PATH",
}
"""Options of kubectl that most verbs do not have, and what to use instead."""
_PATH = re.compile(r"\b(PATH|DIR|FILE)\b")
"""Metavars of path options that our own functions parse, rather than click."""
_IN_BRACKETS = re.compile(r"\s*\[[^\]]*\]")
"""The variables and the default in an option's help."""
_INVALID_CHOICE = re.compile(r"'(.*)' is not one of", re.DOTALL)


class CommandFailed(click.ClickException):
    """The command failed: exit code 1."""

    exit_code = 1

    def __init__(self, message: str) -> None:

        super().__init__(message)
        self._in_json = is_json()  # the failed command's log handler is already gone when this is shown

    def show(self, file: Any = None) -> None:

        text = self.format_message()
        print_note(json_line(logging.ERROR, text) if self._in_json else f"error: {text}")


REFUSED = 3
"""Exit code: the question was answered, and the answer is no: a claim gets no devices, or a machine no node."""


class NoSuchObject(CommandFailed):
    """A named object does not exist: exit code 4."""

    exit_code = 4


class BadInput(CommandFailed):
    """Invalid input: exit code 2."""

    exit_code = 2


_MANY = 8
"""Settings that a short help shows in part."""
_SHORT = 20
"""Characters of a variable or default that a short help has."""


class SettingOption(click.Option):
    """The option of a setting. ``settings_class``: the group that the help lists it with. ``usual``: whether the short
    help shows it."""

    def __init__(self, *args: Any, settings_class: type[Any] | None = None, usual: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings_class = settings_class
        self.usual = usual


class VerbGroup(click.Group):
    """A group of verbs, with advice for verbs that it does not have."""

    def __init__(
        self,
        *args: Any,
        other_words: Mapping[str, str] | None = None,
        advice: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """``other_words``: verbs of other commands, and the verb that does it here. ``advice``: other verbs, each with
        a sentence that says what to do."""
        super().__init__(*args, **kwargs)
        self._other_words, self._advice = other_words or {}, advice or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `--help-all VERB` for `VERB --help-all`, and in a group of few verbs, which says all, for `--help`."""
        if args[:1] in (["--help"], ["-h"], ["--help-all"]) and len(args) > 1 and self.has_command(ctx, args[1]):
            args = [*args[1:], args[0]]
        if not any("--help-all" in param.opts for param in self.params):
            args = ["--help" if each == "--help-all" and number == 0 else each for number, each in enumerate(args)]
        return super().parse_args(ctx, args)

    def has_command(self, ctx: click.Context, name: str) -> bool:
        """Whether it has the verb, which need not be imported for that."""
        return name in self.list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The whole first sentence of each, which click would cut off at one line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=1000)) for name, one in commands if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if not name.startswith("-") and not self.has_command(ctx, name):
            from devalloc.api.problems import closest_match

            above = "" if ctx.parent is None else f"{ctx.info_name} "
            advice = self._advice.get(name)
            if advice is None:
                near = self._other_words.get(name) or closest_match(name, self.list_commands(ctx))
                listed = f"`{ctx.command_path} --help` lists them"
                advice = f"did you mean `{above}{near}`?" if near else f"{listed}."
            ctx.fail(f"There is no verb `{above}{name}`; {advice}")
        return super().resolve_command(ctx, args)


class Verb(click.Command):
    """A command whose errors are one line: what, where and what to do. Its function returns the exit code."""

    def __init__(self, *args: Any, advice: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """``advice``: what to do instead, by option; with the key "" for unexpected arguments."""
        super().__init__(*args, **kwargs)
        self._advice = {**_FROM_KUBECTL, **(advice or {})}
        self._usual: Sequence[str] = ()
        self.params += [
            click.Option(["--debug"], is_flag=True, envvar="DEVALLOC_DEBUG", help="Show tracebacks."),
            click.Option(
                ["--log-format"],
                type=click.Choice(["plain", "json"]),
                default="plain",
                envvar="DEVALLOC_LOG_FORMAT",
                help="Format of the log on stderr; json includes errors and the output of long-running commands.",
            ),
            click.Option(
                ["--log-level"],
                type=click.Choice(LEVELS),
                default="warning",
                envvar="DEVALLOC_LOG_LEVEL",
                help="Lowest level to log.",
            ),
        ]

    def shorten_help(self, usual: Sequence[str] = ()) -> None:
        """Let `--help` show these options and the usual settings only, and `--help-all` all of them."""
        if not self._usual:
            settings = [each for each in self.params if isinstance(each, SettingOption)]
            if not usual and len(settings) < _MANY:
                return
            self._usual = [*dict.fromkeys((*usual, *(each.opts[0] for each in settings if each.usual)))]
            self.params.append(help_all_option(_titles(settings)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those of each group of settings below its title. Without the defaults that are empty, for which click shows
        [default: ""]."""
        for param in self.params:
            if isinstance(param, click.Option) and param.default == "":
                param.show_default = False
        if self._usual and not shows_all(ctx):
            self._format_usual_options(ctx, formatter)
            return
        of_groups = [param for param in self.params if isinstance(param, SettingOption) and param.settings_class]
        own = [param for param in self.params if param not in of_groups]
        if not (group := ctx.meta.get(_HELP_ALL)):
            click.Command(self.name, params=own).format_options(ctx, formatter)
        _format_groups([each for each in of_groups if not group or _titles([each]) == [group]], ctx, formatter)

    def _format_usual_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.params if isinstance(param, click.Option) and not param.hidden]
        by_name = {name: option for option in options for name in option.opts}
        shown = [by_name[name] for name in self._usual if name in by_name]
        more = len(options) - len(shown) - 1
        titles = _titles(options)
        note = f"Show {more} more options" + (f", or those of one group: {', '.join(titles)}." if titles else ".")
        whole = [each.get_help_record(ctx) or ("", "") for each in shown]
        records = [(name, _first_sentence(text)) for name, text in whole]
        with formatter.section("Options"):
            formatter.write_dl(
                [
                    *records,
                    (f"--help-all{' [GROUP]' * bool(titles)}", note),
                    ("-h, --help", "Show this message and exit."),
                ]
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._with_plain_dry_run(args)
        if not self._usual and "--" not in args:  # all is in the short help
            args = ["--help" if arg == "--help-all" else arg for arg in args]
        try:
            may_be_empty = "" in args or any(arg.endswith("=") for arg in args)
            if may_be_empty and not ctx.resilient_parsing:  # completion reports nothing
                self._refuse_empty_paths(ctx, args)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if not (advice := self._advice_on(error)):
                raise
            raise click.UsageError(f"{error.format_message().removesuffix('.')}; {advice}", ctx) from error

    def _with_plain_dry_run(self, args: list[str]) -> list[str]:
        """The arguments with kubectl's forms of --dry-run as the switch that it is here: nothing is written either
        way. `install` tells them apart."""
        options = [one for one in self.params if isinstance(one, click.Option) and "--dry-run" in one.opts]
        if not any(one.is_flag for one in options):
            return args
        args = ["--dry-run" if each in ("--dry-run=client", "--dry-run=server") else each for each in args]
        return [each for each in args if each != "--dry-run=none"]

    def _refuse_empty_paths(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse empty paths, which would be the current folder: `delete -f "$FILE"` with a variable that is not set.

        It checks every option and argument here, before click turns '' into the same Path as '.'.
        """
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in order:
            values = given.get(param.name)
            if is_path_parameter(param) and (values == "" or (isinstance(values, list | tuple) and "" in values)):
                advice = "; for the current folder use '.'" if _is_folder_parameter(param) else ""
                raise click.BadParameter(f"the path is empty{advice}", ctx, param)

    def _advice_on(self, error: click.UsageError) -> str | None:
        """What to do about it, unless click says so."""
        if isinstance(error, click.NoSuchOption):
            return self._advice.get(error.option_name)
        if isinstance(error, click.BadOptionUsage) and "does not take a value" in error.message:
            return f"use {error.option_name} alone"
        if isinstance(error, click.MissingParameter):
            lines = (line.strip() for line in (self.help or "").splitlines())
            example = next((line for line in lines if line.startswith("devalloc ")), None)
            return f"for example: {example}" if example else None
        if isinstance(error, click.BadParameter):
            kind, written = error.param and error.param.type, _INVALID_CHOICE.match(error.message)
            if isinstance(kind, click.Choice) and written:
                from devalloc.api.problems import closest_match

                near = closest_match(written[1], map(str, kind.choices))
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
                    print_lines("".join(traceback.format_exception(error)), to_stderr=True)
                raise translate_error(error) from error
        # Also pass it to click when it runs standalone, as in its test runner.
        if code:
            ctx.exit(code)
        return 0


class WholeNumber(click.IntRange):
    """A whole number within bounds."""

    name = "whole number"


_HELP_ALL = "devalloc.help-all"
"""Key in a context's ``meta`` if its help shows everything: "", or the one group of settings that it shows."""


_ALL = "all"
"""What --help-all stands for without a group."""


class _Group(click.Choice[str]):
    """The title of a group of settings, or nothing: all of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "" if value == _ALL else super().convert(value, param, ctx)


def help_all_option(groups: Sequence[str] = ()) -> click.Option:
    """--help-all, which prints the help with all options or commands, or with the settings of one of these groups."""
    optional: dict[str, Any] = {"is_flag": True, "default": None}
    if groups:  # without a default: with one, click 8.3.0 asks for an argument
        choice = _Group(groups, case_sensitive=False)
        optional = {"type": choice, "is_flag": False, "flag_value": _ALL, "metavar": "[GROUP]"}
    show = f"Show all options{' (of a group)' * bool(groups)} and exit."
    return click.Option(["--help-all"], is_eager=True, expose_value=False, callback=_help_all, help=show, **optional)


def _help_all(ctx: click.Context, _: click.Parameter, wanted: bool | str | None) -> None:
    if wanted not in (None, False) and not ctx.resilient_parsing:
        print_lines(full_help(ctx, "" if wanted is True else str(wanted)))
        ctx.exit()


def full_help(ctx: click.Context, group: str = "") -> str:
    """The help with all options or commands, or with the settings of one group."""
    ctx.meta[_HELP_ALL] = group
    return ctx.command.get_help(ctx)


def shows_all(ctx: click.Context) -> bool:
    """Whether the help to print is the full one."""
    return _HELP_ALL in ctx.meta


def _first_sentence(text: str) -> str:
    """The first sentence of an option's help, with its variable and default if they are short."""
    sentence = re.split(r"[.;] ", _IN_BRACKETS.sub("", text), maxsplit=1)[0].rstrip(".")
    parts = (part for each in _IN_BRACKETS.findall(text) for part in each.strip(" []").split("; "))
    short = "; ".join(part for part in parts if len(part) <= _SHORT and part != "default: none")
    return f"{sentence}. [{short}]" if short else f"{sentence}."


def _titles(options: Iterable[click.Option]) -> list[str]:
    """The titles of the settings to which these options belong."""
    classes = dict.fromkeys(each.settings_class for each in options if isinstance(each, SettingOption))
    return [title_of(each) for each in classes if each is not None]


def _format_groups(options: Sequence[SettingOption], ctx: click.Context, formatter: click.HelpFormatter) -> None:
    for settings_class in filter(None, dict.fromkeys(each.settings_class for each in options)):
        rows = [each.get_help_record(ctx) for each in options if each.settings_class is settings_class]
        with formatter.section(title_of(settings_class)):
            formatter.write_text(summary_of(settings_class))
            formatter.write_paragraph()
            formatter.write_dl([row for row in rows if row is not None])


def is_path_parameter(param: click.Parameter) -> bool:
    """Whether the parameter is a path. One whose default is "" may be empty, which means none."""
    names_one = _PATH.search(param.metavar or "") is not None
    return (isinstance(param.type, click.Path) or names_one) and param.default != ""


def _is_folder_parameter(param: click.Parameter) -> bool:
    kind = param.type
    return not kind.file_okay if isinstance(kind, click.Path) else "FILE" not in (param.metavar or "")


def translate_error(error: Exception) -> click.ClickException:
    """The error as users see it."""
    if isinstance(error, BadPackage):  # with which the modules below cannot be imported
        return CommandFailed(str(error))
    from devalloc.inventory.capacity import CapacityError
    from devalloc.store.errors import Forbidden, Invalid, NotFound, StoreError, is_disk_full

    if isinstance(error, Invalid | BadSetting):
        return BadInput(str(error))
    if isinstance(error, NotFound):
        return NoSuchObject(str(error))
    if isinstance(error, Forbidden):
        from devalloc.cli.role_hints import role_hint

        return CommandFailed(f"{error}{role_hint(str(error))}")
    if isinstance(error, StoreError | CapacityError | ProgramFailed):
        return CommandFailed(str(error))
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("devalloc."):
        return CommandFailed(
            f"the Python package {error.name!r} is missing; install it with: pip install {_extra_of(error.name)}"
        )
    if isinstance(error, OSError) and error.filename is not None:
        is_of_target = error.filename2 is not None and is_disk_full(error)  # of a copy
        return CommandFailed(f"{error.filename2 if is_of_target else error.filename}: {error.strerror}")
    if isinstance(error, OSError) and (is_disk_full(error) or error.errno == errno.EIO):
        return CommandFailed(f"cannot write the output: {error.strerror}")
    return CommandFailed(
        f"this is a bug in devalloc: {type(error).__name__}: {error} (--debug shows where; please report it)"
    )


_EXTRAS = {
    "node": ("grpc", "grpc_health", "grpc_reflection", "google.protobuf", "pyroute2", "pyudev", "qemu"),
    "page": ("jinja2", "markupsafe"),
    "permits": ("aiohttp", "prometheus_client"),
    "guest": ("websockets", "h11"),
    "kubernetes": ("kubernetes",),
    "controller": ("cryptography",),
}
"""Packages that belong to an extra of the distribution."""


def _extra_of(package: str) -> str:
    """What to install to get a package, for pip."""
    for extra, packages in _EXTRAS.items():
        if any(package == name or package.startswith(f"{name}.") for name in packages):
            return f"'devalloc[{extra}]'"
    return "devalloc"


def require_packages(*packages: str) -> None:
    """Check that packages are installed, before the verb prints anything. Raises CommandFailed with what to install."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise translate_error(error) from error


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM, as of `timeout` or systemd, ends what is inside as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only that one receives signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def runs(module: str) -> Callable[[Callable[[], None]], Callable[..., int | None]]:
    """What a function describes is what the function of its name in a module does. The module is imported when it is
    called: it may import what only that needs. Below the options and arguments, which are passed on."""

    def decorate(described: Callable[[], None]) -> Callable[..., int | None]:
        return wraps(described)(later(module, described.__name__))

    return decorate


def later(module: str, name: str) -> Callable[..., Any]:
    """The function of a module, which is imported when it is called."""

    def call(*of: Any, **given: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*of, **given)

    return call


def verb(name: str, **settings: Any) -> Callable[[Callable[..., int | None]], Verb]:
    """Turn a function into a verb."""
    return click.command(name, cls=Verb, **settings)


@contextmanager
def _logging_to_stderr(form: str, level: str) -> Iterator[None]:
    """Log to stderr while inside. A process that outlives the command, as in tests, may close the command's stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    handlers, threshold = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(threshold)


_RECURSIVE = "devalloc.recursive"


def reported(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of texts whose ValueErrors click shows in its own way."""

    @wraps(read)
    def convert(text: Any) -> Any:
        try:
            return read(text) if isinstance(text, str) else text  # a default, which was read already
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


parse_duration = reported(devalloc.settings.parse_duration)


def is_recursive() -> bool:
    """Whether the current command reads subfolders, too (``files_option``)."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_RECURSIVE))
