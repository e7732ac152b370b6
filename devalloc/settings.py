"""Settings of our processes: a field of a frozen dataclass is an option, a variable, and a row of docs/settings.md.

A settings class declares its fields with ``setting``, in the order in which the help lists their options. A field that
is declared with ``group`` holds another settings class. ``devalloc.cli.options.common`` turns a class into options of
a verb; the guest monitor, which runs without click, reads its class itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

_KEY = "devalloc.setting"
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True)
class Setting:
    """How an administrator sets a field, and what it means."""

    help: str
    """What it does: one or more sentences."""
    flag: str = ""
    """Its option; by default the field's name. ``--node/--no-node``: a switch that can be on, off or not given."""
    type: Any = None
    """What reads a text: a type of click, or a function that raises ValueError. None: the text is the value."""
    default: Any = None
    """As an administrator writes it, such as ``5m``; False: a switch; (): repeatable."""
    unset: str = ""
    """What happens by default, if ``default`` does not say it."""
    metavar: str | None = None
    """The kind of value, in capitals: DURATION, PORT, DIR."""
    env: str = ""
    """A variable that has the value if the option is not given, the same for all verbs."""

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
        return "colons" if getattr(self.type, "envvar_list_splitter", None) == ":" else "blanks"

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
) -> Any:
    """Declare a field of a settings class."""
    return declared(Setting(help, flag, type, default, unset, metavar, env))


def declared(what: Setting) -> Any:
    """Declare a field by a setting that several classes have."""
    is_text = isinstance(what.default, str) and what.type is not None
    return field(default=what.type(what.default) if is_text else what.default, metadata={_KEY: what})


def group(settings_class: type[Any]) -> Any:
    """Declare a field that holds another settings class."""
    return field(default_factory=settings_class, metadata={_KEY: settings_class})


def declarations(settings_class: type[Any]) -> Iterator[tuple[str, Setting | type[Any]]]:
    """The fields of a class in order, each a setting or a group."""
    for each in fields(settings_class):
        what = each.metadata[_KEY]
        if isinstance(what, Setting) and not what.flag:
            what = replace(what, flag=f"--{each.name.replace('_', '-')}")
        yield each.name, what


def settings_with_classes(settings_class: type[Any]) -> list[tuple[Setting, type[Any]]]:
    """The settings of a class and its groups, in order, each with the class that declares it."""
    listed: list[tuple[Setting, type[Any]]] = []
    for _, what in declarations(settings_class):
        listed += [(what, settings_class)] if isinstance(what, Setting) else settings_with_classes(what)
    return listed


def settings_of(settings_class: type[Any]) -> list[Setting]:
    """The settings of a class and its groups, in order."""
    return [each for each, _ in settings_with_classes(settings_class)]


def title_of(settings_class: type[Any]) -> str:
    """The heading of a group's settings, in the help and in docs/settings.md."""
    return settings_class.__name__.removesuffix("Options")


def summary_of(settings_class: type[Any]) -> str:
    """What a group's settings are about: the first paragraph of its docstring."""
    return inspect.cleandoc(settings_class.__doc__ or "").partition("\n\n")[0]


def build(settings_class: type[_Settings], values: Mapping[str, Any]) -> _Settings:
    """An instance from values by parameter; a parameter that is missing has its default."""
    arguments: dict[str, Any] = {}
    for name, what in declarations(settings_class):
        if not isinstance(what, Setting):
            arguments[name] = build(what, values)
        elif what.parameter in values:
            arguments[name] = values[what.parameter]
    return settings_class(**arguments)


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
