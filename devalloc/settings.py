"""Settings of our processes: a field of a frozen dataclass is an option, a variable, and a row of docs/settings.md.

A settings class declares its fields with ``setting``, in the order in which the help lists their options. A field that
is declared with ``group`` holds another settings class. ``devalloc.cli.options.common`` turns a class into options of
a verb; the guest monitor, which runs without click, reads its class itself.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal, TypeVar

_KEY = "devalloc.setting"
_Settings = TypeVar("_Settings")


class BadSetting(ValueError):
    """A setting that cannot be, alone or beside the others of its class."""

    def __init__(self, flag: str, text: str) -> None:
        """``text``: the rest of a sentence that begins with the option, or with a colon what is wrong."""
        super().__init__(f"{flag}{text}" if text.startswith(": ") else f"{flag} {text}")
        self.flag = flag


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of these words. ``is_open``: other words may be valid, too, which its class checks."""

    words: Sequence[str]
    is_open: bool = False

    def __call__(self, text: str) -> str:
        if not self.is_open and text not in self.words:
            raise ValueError(f"{text!r} is not one of {', '.join(self.words)}")
        return text


@dataclass(frozen=True, slots=True)
class Whole:
    """Reads a whole number."""

    least: int
    most: int | None = None

    def __call__(self, text: str) -> int:
        number = int(text)
        if number < self.least or (self.most is not None and number > self.most):
            raise ValueError(f"{number} is not in the range of {self.least} to {self.most}")
        return number


@dataclass(frozen=True, slots=True)
class PathTo:
    """Reads a path. ``exists``: something of this kind must be there, which the command checks."""

    what: Literal["file", "folder", "any"] = "any"
    exists: bool = False

    def __call__(self, text: str) -> Path:
        return Path(text)


@dataclass(frozen=True, slots=True)
class HostPort:
    """Reads HOST:PORT, or nothing: None."""

    example: str

    def __call__(self, text: str) -> tuple[str, int] | None:
        if not text:
            return None
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"must be HOST:PORT such as {self.example}, not {text!r}")
        return host.strip("[]"), int(port)


FOLDER, EXISTING_FOLDER, EXISTING_FILE = PathTo("folder"), PathTo("folder", exists=True), PathTo("file", exists=True)
PORT = Whole(0, 65535)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """Seconds, written as 30s, 5m, 1h30m, 500ms or a plain number."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        seconds = float(text)
    else:
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"invalid duration {text!r}; write it like 30s, 5m, 1h30m or 500ms")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not math.isfinite(seconds):
        raise ValueError("the duration is too long; give fewer digits")
    return seconds


def parse_interval(text: str) -> float:
    """As ``parse_duration``, but more than 0."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("must be more than 0")
    return seconds


Network = IPv4Network | IPv6Network


def parse_network(text: str) -> Network:
    """A network by its address and the length of its prefix."""
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.1.0.0/16: {error}") from None


@dataclass(frozen=True, slots=True)
class Setting:
    """How an administrator sets a field, and what it means."""

    help: str
    """What it does: one or more sentences."""
    flag: str = ""
    """Its option; by default the field's name. ``--node/--no-node``: a switch that can be on, off or not given."""
    type: Any = None
    """What reads a text, or raises ValueError with what is wrong. None: the text is the value."""
    default: Any = None
    """As an administrator writes it, such as ``5m``; False: a switch; (): repeatable."""
    unset: str = ""
    """What happens by default, if ``default`` does not say it."""
    metavar: str | None = None
    """The kind of value, in capitals: DURATION, PORT, DIR."""
    env: str = ""
    """A variable that has the value if the option is not given, the same for all verbs."""
    usual: bool = False
    """Whether the short help of its verb shows it."""

    @property
    def parameter(self) -> str:
        """Its name among click's parameters, which those of one verb do not share."""
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")

    @property
    def is_switch(self) -> bool:
        return self.default is False or "/" in self.flag

    @property
    def is_repeatable(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def separator(self) -> str:
        """What separates several values in a variable."""
        return "colons" if isinstance(self.type, PathTo) else "blanks"

    @property
    def full_help(self) -> str:
        """The help, with the variable and the default."""
        variable = f"env: {self.env}{f', separated by {self.separator}' * self.is_repeatable}" if self.env else ""
        notes = "; ".join(filter(None, (variable, self.unset and f"default: {self.unset}")))
        return f"{self.help.removesuffix('.')} [{notes}]." if notes else self.help


def setting(
    help: str,
    *,
    flag: str = "",
    type: Any = None,
    default: Any = None,
    unset: str = "",
    metavar: str | None = None,
    env: str = "",
    usual: bool = False,
) -> Any:
    """Declare a field of a settings class."""
    return declared(Setting(help, flag, type, default, unset, metavar, env, usual))


def declared(what: Setting) -> Any:
    """Declare a field by a setting that several classes have."""
    is_text = isinstance(what.default, str) and what.type is not None
    return field(default=what.type(what.default) if is_text else what.default, metadata={_KEY: what})


@dataclass(frozen=True, slots=True)
class Group:
    """How a field holds another settings class."""

    settings_class: type[Any]
    is_titled: bool
    """Its settings are listed below a title of their own, not with those of the class that has the field."""


def group(settings_class: type[Any], *, titled: bool = True) -> Any:
    """Declare a field that holds another settings class."""
    return field(default_factory=settings_class, metadata={_KEY: Group(settings_class, titled)})


def declarations(settings_class: type[Any]) -> Iterator[tuple[str, Setting | Group]]:
    """The fields that a class itself declares as a setting or a group, in order. Others are no business of
    administrators, and those of its base classes are set as these."""
    own = settings_class.__annotations__
    for each in fields(settings_class):
        if (what := each.metadata.get(_KEY)) is None or each.name not in own:
            continue
        if isinstance(what, Setting) and not what.flag:
            what = replace(what, flag=f"--{each.name.replace('_', '-')}")
        yield each.name, what


def settings_with_classes(settings_class: type[Any]) -> list[tuple[Setting, type[Any]]]:
    """The settings of a class and its groups, in order, each with the class that it is listed with."""
    listed: list[tuple[Setting, type[Any]]] = []
    for _, what in declarations(settings_class):
        if isinstance(what, Setting):
            listed.append((what, settings_class))
        elif what.is_titled:
            listed += settings_with_classes(what.settings_class)
        else:
            listed += [(each, settings_class) for each in settings_of(what.settings_class)]
    return listed


def settings_of(settings_class: type[Any]) -> list[Setting]:
    """The settings of a class and its groups, in order."""
    return [each for each, _ in settings_with_classes(settings_class)]


def title_of(settings_class: type[Any]) -> str:
    """The heading of a group's settings, in the help and in docs/settings.md: the first word of its name."""
    return "".join(re.findall("[A-Z][a-z]*", settings_class.__name__)[:1])


def summary_of(settings_class: type[Any]) -> str:
    """What a group's settings are about: the first paragraph of its docstring."""
    return inspect.cleandoc(settings_class.__doc__ or "").partition("\n\n")[0]


def build(settings_class: type[_Settings], values: Mapping[str, Any]) -> _Settings:
    """An instance from values by parameter; a parameter that is missing has its default."""
    arguments: dict[str, Any] = {}
    for name, what in declarations(settings_class):
        if not isinstance(what, Setting):
            arguments[name] = build(what.settings_class, values)
        elif what.parameter in values:
            arguments[name] = values[what.parameter]
    return settings_class(**arguments)


def values_of(settings: Any) -> dict[str, Any]:
    """The values of its fields by name, such as for an instance of a class that is based on its class."""
    return {each.name: getattr(settings, each.name) for each in fields(settings)}


def given_options(settings: Any) -> list[str]:
    """The options whose values are not the defaults, in order."""
    default = type(settings)()
    listed: list[str] = []
    for name, what in declarations(type(settings)):
        value = getattr(settings, name)
        if not isinstance(what, Setting):
            listed += given_options(value)
        elif value != getattr(default, name):
            listed.append(what.flag)
    return listed
