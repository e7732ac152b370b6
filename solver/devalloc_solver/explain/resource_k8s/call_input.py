"""The arguments of a call of ``dra.allocate``, and the same with something dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from devalloc_solver.cel.budget import Allowance
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.fields import FieldError, short_text
from devalloc_solver.dialects.resource_k8s.selectors import SelectorJudge
from devalloc_solver.dialects.resource_k8s.usage import DeviceUsage
from devalloc_solver.pipeline.one_node import AllocationTask, Manifest, prepare
from devalloc_solver.pipeline.unit_search import place_unit
from devalloc_solver.problem.placement import Placement

ManifestContent = dict[str, Any]
RequestPosition = tuple[int, int]
"""(position of a claim, index of a request or constraint)"""


@dataclass(frozen=True, slots=True)
class CallInput:
    """Manifests. What is dropped keeps its place until the manifests are read, so that positions stay what they are."""

    node: Manifest | str
    claims: tuple[Manifest, ...]
    classes: tuple[Manifest, ...]
    slices: tuple[Manifest, ...]
    """those that can be read, in order of pool and name"""
    allocated: Mapping[str, Sequence[Manifest]]
    features: frozenset[str]
    unread: tuple[Manifest, ...] = ()
    """slices that cannot, and stay as they are"""
    dropped_claims: frozenset[int] = frozenset()
    dropped_requests: frozenset[RequestPosition] = frozenset()
    dropped_constraints: frozenset[RequestPosition] = frozenset()
    allowance: Allowance = field(default_factory=Allowance)
    """of the call that asks all these questions"""
    _selectors: dict[frozenset[str], SelectorJudge] = field(default_factory=dict)
    """feature gates -> what expressions said of devices, in whatever question"""

    @property
    def node_name(self) -> str:
        return self.node if isinstance(self.node, str) else str(self.node["metadata"]["name"])

    @property
    def waiting(self) -> Iterator[tuple[int, Manifest]]:
        """The claims that have no allocation, with their positions."""
        return ((i, claim) for i, claim in enumerate(self.claims) if not is_allocated(claim))

    # -- questions -----------------------------------------------------------------------------------------------------

    def task(self, holders: Sequence[DeviceUsage] | None = None) -> AllocationTask | None:
        """Everything known before the search; None when no claim waits. Raises AllocationError and OutOfTime.

        ``holders``: see ``prepare``.
        """
        self.allowance.begin_again()
        selectors = self._selectors.setdefault(self.features, SelectorJudge(self.features, self.allowance))
        claims = [self._claim(i, claim) for i, claim in enumerate(self.claims) if i not in self.dropped_claims]
        slices = (*self.slices, *self.unread)
        return prepare(
            self.node,
            claims,
            self.classes,
            slices,
            self.allowance,
            allocated=self.allocated,
            features=self.features,
            selectors=selectors,
            holders=holders,
        )

    def placements(self) -> Sequence[Placement] | None:
        """Where everything goes; None when it does not fit, or cannot be judged. Raises OutOfTime."""
        try:
            task = self.task()
            if task is None:
                return None if self.dropped_claims else ()  # to ask for nothing at all is no way to get it
            return place_unit(task.snapshot, task.holdings, task.unit, ends=task.ends)
        except AllocationError:
            return None

    def fits(self) -> bool:
        return self.placements() is not None

    # -- the same, changed ---------------------------------------------------------------------------------------------

    def with_slices(self, change: Callable[[ManifestContent], ManifestContent]) -> CallInput:
        """With the spec of every slice changed."""
        return replace(self, slices=tuple({**s, "spec": change(dict(s["spec"]))} for s in self.slices))

    def with_devices(self, change: Callable[[ManifestContent, ManifestContent], ManifestContent]) -> CallInput:
        """With every device changed, given the spec of its slice."""

        def devices(spec: ManifestContent) -> ManifestContent:
            return {**spec, "devices": [change(spec, dict(device)) for device in spec.get("devices") or ()]}

        return self.with_slices(lambda spec: devices(spec) if spec.get("devices") else spec)

    def with_ask(
        self, position: int, index: int, alternative: int | None, change: Callable[[ManifestContent], ManifestContent]
    ) -> CallInput:
        """With one request, or one alternative of it, changed."""
        claim = self.claims[position]
        requests = [*claim["spec"]["devices"]["requests"]]
        request = dict(requests[index])
        if alternative is None:
            request["exactly"] = change(dict(request["exactly"]))
        else:
            choices = [*request["firstAvailable"]]
            choices[alternative] = change(dict(choices[alternative]))
            request["firstAvailable"] = choices
        requests[index] = request
        devices = {**claim["spec"]["devices"], "requests": requests}
        changed = {**claim, "spec": {**claim["spec"], "devices": devices}}
        return replace(self, claims=(*self.claims[:position], changed, *self.claims[position + 1 :]))

    def _claim(self, position: int, claim: Manifest) -> Manifest:
        """A claim without its dropped requests and constraints, and without mention of them."""
        gone = {index for at, index in self.dropped_requests if at == position}
        broken = {index for at, index in self.dropped_constraints if at == position}
        if not gone and not broken:
            return claim
        devices = devices_spec(claim)
        requests = [request for i, request in enumerate(devices.get("requests") or ()) if i not in gone]
        names = {request["name"] for request in requests}
        constraints = [one for i, one in enumerate(devices.get("constraints") or ()) if i not in broken]
        rest = {
            "constraints": [*_still_about(constraints, names)],
            "config": [*_still_about(devices.get("config") or (), names)],
        }
        return {**claim, "spec": {**claim["spec"], "devices": {**devices, "requests": requests, **rest}}}


def _still_about(entries: Iterable[Manifest], names: set[str]) -> Iterator[Manifest]:
    """Constraints or configs with the requests that are left; those about none of them go."""
    for entry in entries:
        listed = entry.get("requests") or ()
        left = [name for name in listed if name.partition("/")[0] in names]
        if left or not listed:
            yield {**entry, "requests": left} if listed else entry


def subrequests_of(claim: Manifest) -> Iterator[tuple[int, int | None, str, ManifestContent]]:
    """(index, alternative, path, content) of what a claim asks for."""
    for index, request in enumerate(devices_spec(claim).get("requests") or ()):
        path = f"spec.devices.requests[{index}]"
        if request.get("firstAvailable"):
            for number, choice in enumerate(request["firstAvailable"]):
                yield index, number, f"{path}.firstAvailable[{number}]", choice
        else:
            yield index, None, f"{path}.exactly", request["exactly"]


def devices_spec(claim: Manifest) -> Manifest:
    """What a claim that can be read says of devices."""
    return (claim.get("spec") or {}).get("devices") or {}


def sort_slices(slices: Iterable[Manifest]) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
    """(slices that can be read, in an order that does not depend on theirs, and the others)"""
    readable: list[tuple[object, Manifest]] = []
    unread: list[Manifest] = []
    for content in slices:
        try:
            resource_slice = read_slice(content)
        except FieldError:
            unread.append(content)
            continue
        place = resource_slice.reach.node_name or "", [device.name for device in resource_slice.devices]
        readable.append(((*resource_slice.pool_id, resource_slice.generation, resource_slice.name, *place), content))
    return tuple(content for _, content in sorted(readable, key=itemgetter(0))), tuple(unread)


def is_allocated(claim: Manifest) -> bool:
    status = claim.get("status")
    return isinstance(status, Mapping) and bool(status.get("allocation"))


def claim_title(claim: Manifest) -> str:
    """namespace/name"""
    metadata = claim.get("metadata")
    fields = metadata if isinstance(metadata, Mapping) else {}
    return f"{short_text(fields.get('namespace') or 'default')}/{short_text(fields.get('name') or '')}"
