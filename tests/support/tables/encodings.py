"""Encodings: amounts on the wire, and the names of protocol versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from devalloc.scaling.messages.permits import PodName
from devalloc.scaling.peer_json import WireAmountError, bytes_from_json, bytes_to_json, cpu_from_json, cpu_to_json
from devalloc.scaling.versions import MonitorVersion, PluginVersion, Version, VersionRange
from devalloc_neon.informant_messages import InformantVersion
from devalloc_neon.runner_messages import RunnerVersion
from tests.support.tables.table_form import CaseVerdict, TableForm, section, verdict

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
    "runner_version_strings": RunnerVersion,
}
_HAVE: dict[str, type[Version]] = {"plugin_versions_that": PluginVersion, "informant_versions_that": InformantVersion}
_REJECTED = "rejected_as_quantity"


def _encodings(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for key, convert in _AMOUNTS.items():
        for given, expected, *marks in content.get(key, ()):
            # What peers make of it and devalloc refuses (T23) is marked.
            yield _amount(f"{key} {json.dumps(given)}", convert, given, ERROR if "quirk" in marks else expected)
    for text in content.get(_REJECTED, ()):
        for key in ("json_to_milli_cpu", "json_to_bytes"):
            read = lambda text, key=key: _AMOUNTS[key](json.loads(text))  # noqa: E731
            yield _amount(f"{_REJECTED} {text} in {key}", read, text, ERROR)
    for key, kind in _VERSIONS.items():
        for number, name in content.get(key, {}).items():
            yield verdict(f"{key} {number}", name, lambda kind=kind, number=number: str(kind(number)))


def _amount(name: str, convert: Callable[[Any], Any], given: Any, expected: Any) -> CaseVerdict:
    def judge() -> Any:
        try:
            return convert(given)
        except WireAmountError:
            return ERROR

    return verdict(name, expected, judge)


def _have(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    """Which of the versions that there are have what."""
    for key, kind in _HAVE.items():
        for name, numbers in content.get(key, {}).items():
            codes = range(1, len(kind.names) + 1)
            having = lambda name=name, kind=kind, codes=codes: [n for n in codes if getattr(kind(n), name)]  # noqa: E731
            yield verdict(f"{key} {name}", numbers, having)


def _ranges(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for one, other, expected in content["latest_shared_version"]:
        shared = lambda one=one, other=other: _range(one).latest_shared(_range(other))  # noqa: E731
        yield verdict(f"latest_shared_version {one} {other}", expected, shared)


def _range_texts(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    for ends, expected in content["version_range_strings"]:
        yield verdict(f"version_range_strings {ends}", expected, lambda ends=ends: str(_range(ends)))


def _range(ends: list[int]) -> VersionRange[PluginVersion]:
    return VersionRange(*map(PluginVersion, ends))


def _pod_names(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    names = content["namespaced_name_format"]
    expected = names["default"]
    yield verdict("namespaced_name_format default", expected, lambda: str(PodName(*expected.split("/"))))
    why = "how a debugger spells it, which no peer sends"
    yield from (CaseVerdict(f"namespaced_name_format {name}", unjudged=why) for name in names if name != "default")


FORMS = [
    TableForm(
        "encodings of amounts and versions",
        lambda content: any(key in content for key in (*_AMOUNTS, *_VERSIONS, _REJECTED)),
        _encodings,
        sections=lambda name: name in (*_AMOUNTS, *_VERSIONS, _REJECTED),
    ),
    TableForm(
        "what versions have",
        lambda content: any(key in content for key in _HAVE),
        _have,
        sections=lambda name: name in _HAVE,
    ),
    section("latest versions that are shared", "latest_shared_version", _ranges),
    section("ranges of versions", "version_range_strings", _range_texts),
    section("names of pods", "namespaced_name_format", _pod_names),
]
