"""Rendering kustomize folders: the subset that ``deploy/`` uses, so that the installation does not need kustomize.

It supports resources, JSON patches (RFC 6902) and labels. Anything else in a ``kustomization.yaml`` is an error; a test
compares the result with kubectl's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_NAMES = ("kustomization.yaml", "Kustomization")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FIELDS = {"apiVersion", "kind", "resources", "patches", "labels"}


def render_folder(folder: Path) -> list[Object]:
    """The objects of a folder, in the order of its resources. Raises ValueError for unsupported content, and OSError
    for missing files."""
    path = next((folder / name for name in _NAMES if (folder / name).exists()), folder / _NAMES[0])
    (content,) = load_documents(path)
    if unknown := sorted(content.keys() - _FIELDS):
        raise ValueError(f"{path}: {unknown[0]} is not supported, only {', '.join(sorted(_FIELDS))}")
    objects: list[Object] = []
    for name in content["resources"]:
        named = (folder / name).resolve()
        objects += render_folder(named) if named.is_dir() else load_documents(named)
    for entry in content.get("patches", ()):
        objects = _patched(objects, entry, path)
    for entry in content.get("labels", ()):
        if entry.keys() != {"pairs"}:
            raise ValueError(f"{path}: labels support only pairs")
        for one in objects:
            one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **entry["pairs"]}
    return objects


def load_documents(path: Path) -> list[Object]:
    """The documents of a file."""
    return [document for document in yaml.load_all(path.read_text(), _LOADER) if document]


def _patched(objects: Iterable[Object], entry: Mapping[str, Any], path: Path) -> list[Object]:
    target = entry["target"]
    if target.keys() != {"kind", "name"} or entry.keys() - {"target", "patch", "options"}:
        raise ValueError(f"{path}: patches support only an inline patch of a kind and name")
    done, matched = [], False
    for one in objects:
        if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"]):
            matched = True
            for operation in yaml.load(entry["patch"], _LOADER):
                _apply(one, operation, path)
        done.append(one)
    if not matched:
        raise ValueError(f"{path}: there is no {target['kind']} {target['name']} to patch")
    return done


def _apply(one: Object, operation: Mapping[str, Any], path: Path) -> None:
    """One operation of a JSON patch."""
    *folders, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    place: Any = one
    for part in folders:
        place = place[int(part) if isinstance(place, list) else part]
    match operation["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), deepcopy(operation["value"]))
        case "add", dict():
            place[last] = deepcopy(operation["value"])
        case "replace", dict() if last in place:
            place[last] = deepcopy(operation["value"])
        case _:
            raise ValueError(f"{path}: {operation['op']} of {operation['path']} is not supported")
