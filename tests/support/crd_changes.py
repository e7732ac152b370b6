"""What of one CRD's objects another CRD of the same kind would refuse or drop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

Schema = Mapping[str, Any]
_LOWER = ("minimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
_SAME = (
    "type", "pattern", "format", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems", "not", "allOf",
    "anyOf", "oneOf", "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type", "x-kubernetes-embedded-resource",
)  # fmt: skip
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_RULES = "x-kubernetes-validations"
_READ = {
    *_LOWER, *_UPPER, *_SAME, _PRESERVE, _RULES, "properties", "items", "additionalProperties", "required", "enum",
    "nullable", "description", "default", "title", "example",
}  # fmt: skip


_ABSENT = re.compile(r"!has\(self\.([A-Za-z.]+)\)")


def losses(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Where ``after`` is narrower than ``before``, as ``PATH: what``: nothing where each object that is valid under the
    first is kept whole by the second. What a pattern means is not asked: another one counts as narrower. A rule may
    have more alternatives, be told in several, or pass all objects without a new field; others count as narrower."""
    return list(_of_definitions(before["spec"], after["spec"]))


def _of_definitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    kind = before["names"]["kind"]
    for name in ("group", "scope"):
        if before[name] != after[name]:
            yield f"{kind}: {name} is {after[name]}"
    for name, value in before["names"].items():
        there = after["names"].get(name)
        if not set(value) <= set(there or ()) if isinstance(value, list) else value != there:
            yield f"{kind}: {name} is {there}"
    versions = {version["name"]: version for version in after["versions"]}
    for version in before["versions"]:
        where = f"{kind}.{version['name']}"
        other = versions.get(version["name"], {})
        if any(version[name] and not other.get(name) for name in ("served", "storage")):
            yield f"{where}: no more served or stored"
            continue
        fields = {each["jsonPath"] for each in version.get("selectableFields", ())}
        if not fields <= {each["jsonPath"] for each in other.get("selectableFields", ())}:
            yield f"{where}: lacks a selectable field"
        if not version.get("subresources", {}).keys() <= other.get("subresources", {}).keys():
            yield f"{where}: lacks a subresource"
        yield from _of_schemas(version["schema"]["openAPIV3Schema"], other["schema"]["openAPIV3Schema"], kind)


def _of_schemas(before: Schema, after: Schema, path: str) -> Iterator[str]:
    if unknown := sorted((before.keys() | after.keys()) - _READ):
        yield f"{path}: this comparison does not know what {unknown[0]} means"
    if before.get(_PRESERVE) and not after.get(_PRESERVE):
        yield f"{path}: drops unknown fields"
    for word in _SAME:
        if word in after and before.get(word) != after[word]:
            yield f"{path}: {word} is {after[word]!r}, was {before.get(word)!r}"
    if "type" in before and "type" not in after and not after.get("x-kubernetes-int-or-string"):
        yield f"{path}: has no type"
    for word, sign in (*((word, 1) for word in _LOWER), *((word, -1) for word in _UPPER)):
        if word in after and (word not in before or sign * after[word] > sign * before[word]):
            yield f"{path}: {word} is {after[word]}, was {before.get(word)}"
    if "enum" in after and not ("enum" in before and set(before["enum"]) <= set(after["enum"])):
        yield f"{path}: must be one of {after['enum']}"
    if before.get("nullable") and not after.get("nullable"):
        yield f"{path}: may not be null"
    for name in sorted(set(after.get("required", ())) - set(before.get("required", ()))):
        yield f"{path}.{name}: required"
    had = [clause for rule in before.get(_RULES, ()) for clause in _clauses(rule["rule"])]
    for rule in after.get(_RULES, ()):
        if not all(
            any(one <= clause for one in had) or _is_of_new(clause, before) for clause in _clauses(rule["rule"])
        ):
            yield f"{path}: {rule['rule']}"
    yield from _of_parts(before, after, path)


def _clauses(rule: str) -> list[frozenset[str]]:
    """A rule in conjunctive normal form: one alternative of each clause must be true. What cannot be computed is not
    true, and does not keep CEL from another alternative that is."""
    masked = _masked(rule := rule.strip())
    if rule.startswith("(") and not masked.strip("_"):
        return _clauses(rule[1:-1])
    if "?" not in masked:  # it binds weaker than both
        if len(parts := _split(rule, masked, "||")) > 1:
            return [frozenset().union(*each) for each in product(*map(_clauses, parts))]
        if len(parts := _split(rule, masked, "&&")) > 1:
            return [clause for part in parts for clause in _clauses(part)]
    return [frozenset({rule})]


def _split(rule: str, masked: str, sign: str) -> list[str]:
    places = [match.span() for match in re.finditer(re.escape(sign), masked)]
    starts, ends = [0, *(end for _, end in places)], [*(start for start, _ in places), len(rule)]
    return [rule[start:end] for start, end in zip(starts, ends, strict=True)]


def _masked(rule: str) -> str:
    """A rule with ``_`` for each character of a text or in brackets: what is left takes the whole rule apart."""
    rule = re.sub(r"'[^']*'", lambda match: "_" * len(match[0]), rule)
    while (less := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", lambda match: "_" * len(match[0]), rule)) != rule:
        rule = less
    return rule


def _is_of_new(clause: frozenset[str], before: Schema) -> bool:
    """Whether a clause passes all objects without a field that there was not before."""
    return any((match := _ABSENT.fullmatch(each)) and _is_new(match[1], before) for each in clause)


def _is_new(field: str, before: Schema) -> bool:
    schema: Schema | None = before
    for name in field.split("."):
        if schema is None or schema.get(_PRESERVE) or "additionalProperties" in schema:
            return False
        schema = schema.get("properties", {}).get(name)
    return schema is None


def _of_parts(before: Schema, after: Schema, path: str) -> Iterator[str]:
    for name, schema in before.get("properties", {}).items():
        if name in after.get("properties", {}):
            yield from _of_schemas(schema, after["properties"][name], f"{path}.{name}")
        elif isinstance(after.get("additionalProperties"), Mapping):
            yield from _of_schemas(schema, after["additionalProperties"], f"{path}.{name}")
        elif not after.get(_PRESERVE):
            yield f"{path}.{name}: dropped"
    for word, each in (("items", "[]"), ("additionalProperties", ".*")):
        theirs, ours = before.get(word), after.get(word)
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            yield from _of_schemas(theirs, ours, path + each)
        elif theirs and not ours and not after.get(_PRESERVE):
            yield f"{path}{each}: dropped"
