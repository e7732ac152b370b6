"""Encodings: amounts on the wire, and the names of protocol versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from devalloc.scaling.messages.plugin import PodName
from devalloc.scaling.scalars import ScalarError, bytes_from_json, bytes_to_json, cpu_from_json, cpu_to_json
from devalloc.scaling.versions import InformantVersion, MonitorVersion, PluginVersion, Version
from tests.support.tables.forms import Form, Verdict, verdict

ERROR = "error"
_AMOUNTS: dict[str, Callable[[Any], Any]] = {
    "milli_cpu_to_json": cpu_to_json,
    "json_to_milli_cpu": cpu_from_json,
    "bytes_to_json": bytes_to_json,
    "json_to_bytes": bytes_from_json,
}
_VERSIONS: dict[str, type[Version]] = {
    "plugin_version_strings": PluginVersion,
    "informant_version_strings": InformantVersion,
    "monitor_version_strings": MonitorVersion,
}
_REJECTED = "rejected_as_quantity"


def _encodings(content: dict[str, Any]) -> Iterator[Verdict]:
    for key, convert in _AMOUNTS.items():
        for given, expected, *marks in content.get(key, ()):
            # What peers make of it and devalloc refuses (T23) is marked.
            yield _amount(f"{key} {json.dumps(given)}", convert, given, ERROR if "quirk" in marks else expected)
    for text in content.get(_REJECTED, ()):
        for key in ("json_to_milli_cpu", "json_to_bytes"):
            yield _amount(f"{_REJECTED} {text} in {key}", _AMOUNTS[key], json.loads(text), ERROR)
    for key, kind in _VERSIONS.items():
        for number, name in content.get(key, {}).items():
            yield verdict(f"{key} {number}", name, lambda kind=kind, number=number: str(kind(number)))


def _amount(name: str, convert: Callable[[Any], Any], given: Any, expected: Any) -> Verdict:
    def judge() -> Any:
        try:
            return convert(given)
        except ScalarError:
            return ERROR

    return verdict(name, expected, judge)


def _pod_names(content: dict[str, Any]) -> Iterator[Verdict]:
    # The other spelling in the table is how a debugger prints it, which nobody sends.
    expected = content["namespaced_name_format"]["default"]
    yield verdict("namespaced_name_format default", expected, lambda: str(PodName(*expected.split("/"))))


FORMS = [
    Form(
        "encodings of amounts and versions",
        lambda content: any(key in content for key in (*_AMOUNTS, *_VERSIONS, _REJECTED)),
        _encodings,
        sections=lambda name: name in (*_AMOUNTS, *_VERSIONS, _REJECTED),
    ),
    Form(
        "names of pods",
        lambda content: "namespaced_name_format" in content,
        _pod_names,
        sections=lambda name: name == "namespaced_name_format",
    ),
]
