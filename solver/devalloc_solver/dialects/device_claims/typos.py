"""Typing errors in DeviceClaims: ``modle`` for ``model``, ``A10O`` for ``A100``, a string instead of a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from devalloc.api.claim import COUNT, DeviceClaimDetail
from devalloc.api.findings import Cause, Fact, RuleCode, fact
from devalloc.api.problems import closest_match
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.device_claims.environment import PLACES
from devalloc_solver.cel.device_claims.parser import parse
from devalloc_solver.cel.reads import Comparison, nodes_with_places, value_path
from devalloc_solver.cel.syntax_tree import Call, Literal, Node, Select
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.relaxations import path_of
from devalloc_solver.explain.relaxations import Relaxation
from devalloc_solver.explain.typos import (
    KnownNames,
    TypeNames,
    Typo,
    UnitTypos,
    ValuesOf,
    mistyped_comparison,
    mistyped_name,
    mistyped_parts,
)
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Snapshot

MAX_TYPO_SHARE = 0.01
"""The part of the devices that may have an attribute that still counts as a typing error."""
MAX_DEMANDS = 1_000
"""Demands whose typing errors are remembered; when there are more, all are forgotten."""
_TYPES = TypeNames(
    {str: "text", int: "number", Quantity: "quantity", SemVer: "version"},
    "a ",
    {"quantity": Quantity.parse, "version": SemVer.parse},
)
_NESTED = ("attributes", "capacity")
"""Maps of domains that a device of resource.k8s.io has, and one here has not."""


Survey = KnownNames[Device]


def _attributes(device: Device) -> Iterable[str]:
    return device.attributes


def _resources(device: Device) -> Iterable[str]:
    return device.resources


def _values(device: Device, name: str) -> Iterable[object]:
    value = device.attributes.get(name)
    return () if value is None else (value,)


@dataclass(slots=True)
class TypoFinder(UnitTypos):
    """Finds the typing errors of claims and classes on one fleet."""

    snapshot: Snapshot
    eligibility: CandidateFinder
    copies: Mapping[int, int] | None = None
    """device -> how many of the fleet it stands for, of some none; None: each for itself"""
    identifiers: Mapping[str, ValuesOf[Device]] = field(default_factory=dict)
    """attributes of which the devices here have but some of the values"""
    _there: dict[int, Device] = field(init=False)
    """those that stand for any, by index: a name that is gone from the fleet was not meant"""
    _surveys: dict[object, Survey] = field(default_factory=dict)
    _by_demand: dict[Demand, tuple[Typo, ...]] = field(default_factory=dict)
    _of_class: dict[object, list[Device]] = field(default_factory=dict)
    """class and type of a detail -> their devices"""

    def __post_init__(self) -> None:
        copies = self.copies
        there = (d for d in self.snapshot.devices if d.ghost is None)
        self._there = {d.index: d for d in there if copies is None or copies.get(d.index)}

    def marked(self, edit: Relaxation, unit: PlacementUnit) -> Relaxation:
        """The edit with what was most likely meant, where what it takes away was mistyped."""
        for demand in unit.demands:
            if edit.entry.get("claim") not in (None, "/".join(demand.key)):
                continue
            for typo in self.of_demand(demand):
                same = edit.kind != "matchAttribute" or typo.written == edit.entry["attribute"]
                if same and typo.suggestion is not None and typo.path == edit.entry.get("path"):
                    return replace(edit, entry={**edit.entry, "written": typo.written, "didYouMean": typo.suggestion})
        return edit

    def of_demand(self, demand: Demand) -> tuple[Typo, ...]:
        """All typing errors of one claim, those of the spec's own matchAttributes first."""
        if demand not in self._by_demand:
            if len(self._by_demand) >= MAX_DEMANDS:
                self._by_demand.clear()
            surveys = {id(survey): survey for survey in (self._survey(request.spec) for request in demand.requests)}
            everything = self._survey_of([d for survey in surveys.values() for d in survey.devices])
            own = (_unknown_attribute(everything, name, "spec.matchAttributes") for name in demand.match)
            of_requests = (self._of_request(request) for request in demand.requests)
            self._by_demand[demand] = tuple(filter(None, chain(own, *of_requests)))
        return self._by_demand[demand]

    def _of_request(self, request: Request) -> Iterator[Typo | None]:
        detail, path, survey = request.spec, path_of(request), self._survey(request.spec)
        yield from _in_expression(survey, detail.constraints, f"{path}.constraints")
        yield from (_unknown_attribute(survey, name, f"{path}.matchAttributes") for name in request.match)
        for field_name, amounts in (("requests", request.requests), ("limits", request.limits)):
            yield from (_unknown_resource(survey, name, f"{path}.{field_name}") for name in amounts)
        yield from self._in_class(detail, path)

    def _in_class(self, detail: DeviceClaimDetail, path: str) -> Iterator[Typo]:
        """Typing errors in what the classes of a detail demand, or in the name of the type."""
        classes = self.eligibility.classes_of(detail)
        if classes == [] and detail.device_type and not detail.device_class:
            yield from self._in_type(detail.device_type, f"{path}.deviceType")
        if classes and not self._accepted(detail):
            for device_class in classes:
                driver, name = device_class.spec.driver, f"class {device_class.metadata.name}: spec.constraints"
                of_driver = [d for d in self._there.values() if driver in ("", self._driver(d))]
                yield from _in_expression(self._survey_of(of_driver), device_class.spec.constraints, name)

    def _in_type(self, written: str, path: str) -> Iterator[Typo]:
        """A type that no class has, or only classes that it does not lead to (S14)."""
        classes = self.eligibility.classes.values()
        admin = sorted(c.metadata.name for c in classes if c.spec.admin_access and c.spec.device_type == written)
        types = {c.spec.device_type for c in classes if c.spec.device_type and not c.spec.admin_access} - {written}
        if admin:
            yield Typo(path, fact(Cause.ADMIN_TYPE, device_class=admin[0], type=written), written, None)
        elif (near := closest_match(written, types)) is not None:
            yield Typo(path, fact(Cause.UNKNOWN_TYPE, type=written, near=near), written, near)

    def _survey(self, detail: DeviceClaimDetail) -> Survey:
        """The devices of the detail's class and type; where there are none, all."""
        key = detail.device_class, detail.device_type
        if key not in self._surveys:
            self._surveys[key] = self._survey_of(self._accepted(detail) or [*self._there.values()])
        return self._surveys[key]

    def _survey_of(self, devices: Sequence[Device]) -> Survey:
        copies = None if self.copies is None else [self.copies[device.index] for device in devices]
        return KnownNames(devices, _values, copies, self.identifiers)

    def _accepted(self, detail: DeviceClaimDetail) -> list[Device]:
        key = detail.device_class, detail.device_type
        if key not in self._of_class:
            bare = DeviceClaimDetail(device_class=detail.device_class, device_type=detail.device_type)
            judged = self.eligibility.candidates(bare)
            # What a device has does not depend on whether it can be allocated now, or to whom.
            others = (step for step in judged.funnel if step.rule.code in (RuleCode.UNAVAILABLE, RuleCode.PART))
            indexes = sorted({*judged.accepted, *(index for step in others for index in step.devices)})
            self._of_class[key] = [self._there[index] for index in indexes if index in self._there]
        return self._of_class[key]

    def _driver(self, device: Device) -> str:
        return self.snapshot.pools[device.pool].driver


# -- expressions -------------------------------------------------------------------------------------------------------


def _in_expression(survey: Survey, expression: str | None, path: str) -> Iterator[Typo]:
    if not expression or not expression.strip():
        return
    for typo in survey.expression(expression, partial(_suspicious_parts, survey)):
        yield replace(typo, path=path)


def _suspicious_parts(survey: Survey, expression: str) -> Iterator[Typo]:
    """Without a path."""
    root = parse(expression)
    nodes = [node for node, _ in nodes_with_places(root, PLACES)]
    of_domains = {id(node.operand) for node in nodes if isinstance(node, Select) and isinstance(node.operand, Call)}
    written_so = (_nested(node) for node in nodes if id(node) not in of_domains)
    odd = dict.fromkeys(one for one in written_so if one is not None and not survey.names(_attributes)[one[0]])
    nested = {outer for outer, _, _ in odd}
    yield from (Typo("", _flat_form(survey, outer, name, written), outer, None) for outer, name, written in odd)

    def of_name(path: tuple[str, ...]) -> Typo | None:
        if path[0] in nested:
            return None
        typo = _unknown_attribute(survey, path[0], "")
        if typo is None or survey.names(_attributes)[path[0]] or not survey.names(_resources)[path[0]]:
            return typo
        return Typo("", _amount_in_expression(path[0]), path[0], None)

    def of_comparison(comparison: Comparison) -> Typo | None:
        operator, (name,), literal = comparison
        return mistyped_comparison(survey, operator, name, literal, _TYPES, f"device.{name}")

    yield from mistyped_parts(root, PLACES, of_name, of_comparison)


def _attribute(node: Node) -> str | None:
    """The name in ``device.name`` and ``device['name']``."""
    path = value_path(node, PLACES)
    return None if path is None else path[0]


def _nested(node: Node) -> tuple[str, str, str] | None:
    """("attributes", "model", what was written) of ``device.attributes['gpu.example.com'].model``, as selectors of
    resource.k8s.io have it, and without the domain."""
    match node:
        case Select(operand=Call(function="_[_]", arguments=(outer, _)), field=name) if _attribute(outer) in _NESTED:
            return _nested_name(outer, name, f"[…].{name}")
        case Call(function="_[_]", arguments=(outer, Literal(value=str(name)))) if _attribute(outer) in _NESTED:
            return _nested_name(outer, name, f"['{name}']")
        case Select(operand=outer, field=name) if _attribute(outer) in _NESTED:
            return _nested_name(outer, name, f".{name}")
        case Call(function="@in", arguments=(Literal(value=str(name)), outer)) if (of := _attribute(outer)) in _NESTED:
            return of, name, f"'{name}' in device.{of}"
    return None


def _nested_name(outer: Node, name: str, written: str) -> tuple[str, str, str]:
    of = _attribute(outer) or ""
    return of, name, f"device.{of}{written}"


def _amount_in_expression(name: str) -> Fact:
    return fact(Cause.MISPLACED, name=name, what="is an amount that a claim requests", write=f"requests: {{{name}: …}}")


def _flat_form(survey: Survey, outer: str, name: str, written: str) -> Fact:
    """How to write what is in a map of maps elsewhere."""
    names = survey.names(_attributes)
    if survey.names(_resources)[name] and not names[name]:
        return _amount_in_expression(name)
    name = name if names[name] else closest_match(name, names) or name
    short = f"'{name}' in device" if " in " in written else f"device.{name}"
    return fact(Cause.MISPLACED, name="device", what=f"has no {outer} map here", write=f"{short} instead of {written}")


# -- what is odd -------------------------------------------------------------------------------------------------------


def _unknown_attribute(survey: Survey, name: str, path: str) -> Typo | None:
    """An attribute that no device has, or next to none while another name is near."""
    names = survey.names(_attributes)
    typo = mistyped_name(name, names, survey.total, path=path, rare=MAX_TYPO_SHARE)
    if typo is not None or names[name] or not survey.total:
        return typo
    return Typo(path, fact(Cause.UNKNOWN_NAME, name=name, count=0, total=survey.total), name, None)


def _unknown_resource(survey: Survey, name: str, path: str) -> Typo | None:
    if name == COUNT:
        return None
    having, attributes = survey.names(_resources) + Counter({COUNT: survey.total}), survey.names(_attributes)
    if not having[name] and attributes[name]:
        write = f"device.{name} == … in constraints"
        return Typo(path, fact(Cause.MISPLACED, name=name, what="is an attribute", write=write), name, None)
    typo = mistyped_name(name, having, survey.total, path=path, rare=MAX_TYPO_SHARE)
    if typo is not None or having[name] or not survey.total:
        return typo
    return Typo(path, fact(Cause.UNKNOWN_NAME, name=name, what="amount", count=0, total=survey.total), name, None)
