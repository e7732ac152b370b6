"""A function's deployment as OpenFaaS has it: a service, its image, labels and environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devalloc.cli.output import note
from devalloc.cli.verb import BadInput

_READ = ("service", "image", "labels", "envVars")
_MOST_NAME = 50
"""Characters of a service: numbers of replicas are added to it."""
_MOST_ERRORS = 10
"""Of those of a file, or a folder of files."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    image: str
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    notes: Sequence[str]
    """Members of the deployment that say nothing to a replica."""


def read_function(file: str) -> Function:
    """Read one from a file, or ``-``. Raises BadInput with what is wrong."""
    from devalloc.api.fields import shown
    from devalloc.api.manifests import load
    from devalloc_node.names import is_label

    if Path(file).is_dir():
        raise BadInput(f"{file} is a folder; name the file of one deployment")
    found = load([file], stdin=sys.stdin.buffer if file == "-" else None)
    for warning in (problem for problem in found.problems if problem.severity == "warning"):
        note(str(warning))  # it says that it is one
    if errors := [str(problem) for problem in found.problems if problem.severity == "error"]:
        more = f"; and {len(errors) - _MOST_ERRORS} more" if len(errors) > _MOST_ERRORS else ""
        raise BadInput("; ".join(errors[:_MOST_ERRORS]) + more)
    if len(found.documents) != 1 or not isinstance(found.documents[0].content, dict):
        raise BadInput(f"{file} must hold one deployment of a function, with {', '.join(_READ)}, and nothing else")
    content: dict[str, Any] = found.documents[0].content
    wrong = []
    name, image = content.get("service"), content.get("image")
    if not isinstance(name, str) or not is_label(name) or len(name) > _MOST_NAME:
        wrong.append(f"service must be a DNS label in lower case of at most {_MOST_NAME} characters, not {shown(name)}")
    if not isinstance(image, str):
        wrong.append(f"image must be the path of a disk image, not {shown(image)}")
    labels, environment = (_texts(content.get(key) or {}, key, wrong) for key in ("labels", "envVars"))
    if wrong:
        raise BadInput("; ".join(f"{file}: {each}" for each in wrong))
    notes = [f"{key} of the deployment says nothing to a replica" for key in content if key not in _READ]
    return Function(str(name), str(image), labels, environment, notes)


def _texts(value: object, where: str, wrong: list[str]) -> Mapping[str, str]:
    """With numbers as texts, which YAML has without quotes. What a variable says is never shown."""
    if not isinstance(value, dict):
        wrong.append(f"{where} must be a map of texts")
        return {}
    texts = {}
    for name, text in value.items():
        if not isinstance(text, str | int) or isinstance(text, bool):
            wrong.append(f"{where}.{name} must be a text or a whole number")
        texts[str(name)] = str(text)
    return texts
