"""Folders of kustomize to objects: the part of kustomize that ``deploy/`` uses, so that nobody needs it to install.

Resources, JSON patches (RFC 6902) and labels. Anything else in a ``kustomization.yaml`` is an error, and a test holds
the result against kubectl's own.
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
_KNOWN = {"apiVersion", "kind", "resources", "patches", "labels"}


def render(folder: Path) -> list[Object]:
    """The objects of a folder, in the order they are named. Raises ValueError where a file says what is not known
    here, and OSError where one is missing."""
    path = next((folder / name for name in _NAMES if (folder / name).exists()), folder / _NAMES[0])
    (content,) = load(path)
    if unknown := sorted(content.keys() - _KNOWN):
        raise ValueError(f"{path}: {unknown[0]} is not known here, only {', '.join(sorted(_KNOWN))}")
    objects: list[Object] = []
    for name in content["resources"]:
        named = (folder / name).resolve()
        objects += render(named) if named.is_dir() else load(named)
    for entry in content.get("patches", ()):
        objects = _patched(objects, entry, path)
    for entry in content.get("labels", ()):
        if entry.keys() != {"pairs"}:
            raise ValueError(f"{path}: of labels only pairs are known here")
        for one in objects:
            one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **entry["pairs"]}
    return objects


def load(path: Path) -> list[Object]:
    """The documents of a file."""
    return [document for document in yaml.load_all(path.read_text(), _LOADER) if document]


def _patched(objects: Iterable[Object], entry: Mapping[str, Any], path: Path) -> list[Object]:
    target = entry["target"]
    if target.keys() != {"kind", "name"} or entry.keys() - {"target", "patch", "options"}:
        raise ValueError(f"{path}: of patches only an inline patch of a kind and name is known here")
    done, found = [], False
    for one in objects:
        if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"]):
            found = True
            for operation in yaml.load(entry["patch"], _LOADER):
                _apply(one, operation, path)
        done.append(one)
    if not found:
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
            raise ValueError(f"{path}: {operation['op']} of {operation['path']} is not known here")
