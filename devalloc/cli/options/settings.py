"""Options of verbs from settings classes (``devalloc.settings``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from devalloc.settings import Setting, build, settings_of

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def settings_options(settings_class: type[Any], name: str = "settings") -> Decorator:
    """The options of a settings class, passed together as ``name: settings_class``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        listed = settings_of(settings_class)

        @wraps(function)
        def with_settings(**values: Any) -> Any:
            given = {each.parameter: values.pop(each.parameter) for each in listed}
            return function(**{name: build(settings_class, given)}, **values)

        decorated: Callable[..., Any] = with_settings
        for each in reversed(listed):
            decorated = option(each)(decorated)
        return decorated

    return decorate


def option_of(settings_class: type[Any], parameter: str) -> Decorator:
    """One option of a settings class, passed as ``parameter``."""
    return option(next(each for each in settings_of(settings_class) if each.parameter == parameter))


def option(setting: Setting) -> Decorator:
    """The option of a setting, passed under the name of its parameter."""
    kind: dict[str, Any] = {"is_flag": True} if setting.is_switch else {"multiple": setting.is_repeatable}
    return click.option(
        setting.flag,
        setting.parameter,
        type=setting.type,
        default=setting.default,
        metavar=setting.metavar,
        envvar=setting.env or None,
        help=setting.full_help,
        **kind,
    )
