"""What `devalloc explain KIND.FIELD` prints: a field of a kind, and the fields that it contains."""

from __future__ import annotations

import re
from typing import Any

from devalloc.api.api_kind import ApiKind
from devalloc.api.kinds import API_KINDS
from devalloc.api.problems import closest_match
from devalloc.api.reference import FieldReference, child_fields, field_at, kind_fields
from devalloc.cli.command import BadInput
from devalloc.cli.object_names import kind_of
from devalloc.cli.render.output import print_content, print_table
from devalloc.cli.terminal import print_line

_RULES = re.compile(r" \([ST]\d+[a-z]?(?:, [ST]\d+[a-z]?)*\)")
_MAX_NAMED = 3
"""How many similar fields an error names."""


def parse_field_path(word: str) -> tuple[ApiKind, str] | None:
    """The kind and the path below it for words such as ``claim.spec.claims[0].limits``; None for all other words."""
    head, dot, path = word.partition(".")
    if not dot or "/" in word:
        return None
    try:
        kind = kind_of(head)
    except BadInput:
        return None
    if kind.kind not in API_KINDS or path.lower() == kind.group:  # "dclaim.devmgmtproto.k8s.io" is a kind
        return None
    steps = (step.partition("[")[0] for step in path.strip(".").split("."))
    return kind, ".".join(steps)


def print_field(kind: ApiKind, path: str, output: str) -> None:
    """Print a field as "table", "json" or "yaml". Raises BadInput if the kind has no such field."""
    field = field_at(kind, path)
    if field is None:
        raise BadInput(unknown_field(kind, path))
    below = child_fields(kind, field.path)
    if output != "table":
        fields = [_content(each) for each in below]
        head = {"kind": kind.kind, "apiVersion": kind.api_version}
        print_content(head | _content(field) | ({"fields": fields} if fields else {}), output)
        return
    rows = {
        "Kind": f"{kind.kind} ({kind.api_version})",
        "Field": field.path,
        "Type": field.type,
        "Unit": field.unit,
        "Default": field.default,
        "Required": "yes" if field.required else "no",
        "Valid": "; ".join(field.limits),
        "Meaning": _meaning(field),
    }
    for name, text in rows.items():
        if text:
            print_line(f"{name + ':':11}{text}")
    if below:
        print_line()
        print_table(
            ("FIELD", "TYPE", "UNIT", "DEFAULT", "MEANING"),
            [
                (each.name, each.type, each.unit, "required" if each.required else each.default, _meaning(each))
                for each in below
            ],
        )


def _meaning(field: FieldReference) -> str:
    """Its description without the numbers of rules, which only the specification has."""
    return _RULES.sub("", field.description)


def unknown_field(kind: ApiKind, path: str) -> str:
    """The message for a path that leads to no field: how far it leads, and which fields may be meant."""
    above, step = "", path
    for step in path.split("."):
        here = f"{above}.{step}".strip(".")
        if field_at(kind, here) is None:
            break
        above = here
    parent = field_at(kind, above)
    siblings = child_fields(kind, parent.path) if parent is not None else ()
    message = f"{kind.kind} has no field {f'{above}.{step}'.strip('.')}"
    last = path.rpartition(".")[2].lower()
    elsewhere = [field.path for field in kind_fields(kind) if field.path and field.name.lower() == last]
    near = closest_match(step, [field.name for field in siblings])
    if near is not None:
        return f"{message}; did you mean {f'{above}.{near}'.strip('.')}?"
    if elsewhere:
        return f"{message}; did you mean {' or '.join(elsewhere[:_MAX_NAMED])}?"
    if not siblings:
        return f"{message}: {above} contains no fields"
    return f"{message}; its fields are: {', '.join(field.name for field in siblings)}"


def _content(field: FieldReference) -> dict[str, Any]:
    content = {
        "path": field.path,
        "type": field.type,
        "unit": field.unit,
        "required": field.required,
        "default": field.default,
        "limits": list(field.limits),
        "description": field.description,
    }
    return {name: value for name, value in content.items() if value not in ("", [])}
