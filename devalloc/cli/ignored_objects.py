"""Warnings for objects among manifests that devalloc ignores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from devalloc.api.manifests import Document

Object = dict[str, Any]
ManifestVerb = Literal["apply", "validate", "solve"]

_MAX_NAMES = 3
"""How many names of objects a line contains."""


def ignored_warnings(documents: Sequence[Document], verb: ManifestVerb, stored: Iterable[Object] = ()) -> Iterator[str]:
    """A warning for each kind that devalloc does not use. ``stored``: objects of the store to which they go."""
    from devalloc.controller.reconcile.claims import ignored_reason, is_foreign
    from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

    contents = [document.content for document in documents]
    named: set[tuple[str, str]] | None = None
    is_dra = any(api_group_of(content) == RESOURCE_CLAIMS for content in contents)
    names: dict[tuple[str, str], list[str]] = {}
    for content in contents:
        names.setdefault((content["apiVersion"], content["kind"]), []).append(content["metadata"]["name"])
    for (api_version, kind), of_kind in names.items():
        group = api_version.rpartition("/")[0]
        about = f"warning: {kind} {_listed(of_kind)}"
        if is_foreign({"apiVersion": api_version, "kind": kind}):
            if group != RESOURCE_CLAIMS or verb == "apply":
                yield f"{about}: {ignored_reason(group)}"
            continue
        if _is_read(api_version, kind) or (verb != "apply" and is_dra and not group):
            continue  # Nodes and Pods go with ResourceClaims
        if named is None:
            named = {*_configs([*contents, *stored])}
        if (api_version, kind) in named:
            continue
        is_built_in = "." not in group or group.endswith(".k8s.io")
        unless = "" if is_built_in else ", unless a class or a claim names the object in its configs"
        yield f"{about}: devalloc does not use this kind{unless}"


def _is_read(api_version: str, kind: str) -> bool:
    from devalloc.api.kinds import KINDS

    return (kind in KINDS and KINDS[kind].api_version == api_version) or (
        api_version == "v1" and kind in ("Namespace", "ResourceQuota")
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else f"{shown} and {len(names) - _MAX_NAMES} more"


def _configs(objects: Iterable[Object]) -> Iterator[tuple[str, str]]:
    """The kinds that classes and claims name in their configs."""
    for obj in objects:
        spec = obj.get("spec")
        if obj.get("kind") not in ("DeviceClass", "DeviceClaim") or not isinstance(spec, dict):
            continue
        entries = [spec, *(spec.get("claims") or [])]
        for entry in [
            *entries,
            *(one for each in entries if isinstance(each, dict) for one in each.get("oneOf") or []),
        ]:
            for config in (entry.get("configs") or []) if isinstance(entry, dict) else []:
                if isinstance(config, dict):
                    yield str(config.get("apiVersion")), str(config.get("kind"))
