"""Three opinions on an instance of resource.k8s.io: ours, upstream's released allocator, and the exhaustive search.

Ours must be what the rules say, and pass the independent check. Where upstream's is not, the difference must be one
that is documented, recognised by a rule of its own: the oracle answers as upstream does once it has the same quirk, or
upstream's own error says what it stumbled over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from devalloc_solver import dra
from devalloc_solver.check.resource_k8s import check_results
from tests.support import dra_oracle
from tests.support.dra_instances import Instance
from tests.support.dra_oracle import QUIRKS, OracleVerdict
from tests.support.upstream_allocator import Peer

GATES = {"DeviceBindingAndStatus": "DRADeviceBindingConditions"}
DIFFERENCES = {
    **QUIRKS,
    "later alternative": "devices of earlier requests are chosen first, so a later alternative may be taken",
    "stops at a selector that fails": "a selector that fails on the first device it meets ends the call",
    "stops at a constraint on all devices": "a constraint on an All request ends the call, whatever else might do",
    "finds errors only where its search comes": "compile errors and impossible amounts that are not met are no errors",
    "distinctAttribute while its gate is off": "the constraint is obeyed although DRAConsumableCapacity is off",
    "list attributes while their gate is off": "a list satisfies a constraint as long as it is the only device",
    "time-out": "the search takes longer than its limit",
}
"""What v0.37.2 does otherwise, by the names that docs/development/dra-differences.md gives it."""
PEER_TIMEOUT = 0.5
"""Seconds for the peer: a search that takes longer is one of the differences."""
SHRINKS = 600
"""Attempts to make a failing instance smaller."""


@dataclass(frozen=True)
class Opinion:
    """An answer of either allocator."""

    outcome: str
    node_local: bool = False
    results: list[dict[str, Any]] | None = None
    error: str = ""


@dataclass(frozen=True)
class Comparison:
    complaints: tuple[str, ...]
    """what is wrong with our answer, or what is not documented about theirs; the first words tell the kind"""
    difference: str | None
    """the documented difference that upstream shows here"""
    outcome: str
    """ours"""


def ours(instance: Instance) -> Opinion:
    """What the solver says; a crash is an outcome, too."""
    given = instance["input"]
    try:
        results = dra.allocate(
            given["node"],
            given["claimsToAllocate"],
            given["classes"],
            given["slices"],
            allocated=allocated(given),
            features=[name for name, enabled in instance["features"].items() if enabled],
        )
    except dra.AllocationError as error:
        return Opinion("error", error.node_local, error=str(error))
    except Exception as error:
        return Opinion("crash", error=f"{type(error).__name__}: {error}")
    return Opinion("not-allocated" if results is None else "allocated", results=results)


def allocated(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is in use, as ``dra.allocate`` takes it."""
    return {
        "devices": given["allocatedDevices"],
        "shares": given["allocatedSharedDeviceIDs"],
        "consumedCapacity": given["aggregatedCapacity"],
    }


def theirs(instance: Instance, peer: Peer) -> Opinion:
    """What upstream's allocator says."""
    reply = peer.ask(instance["input"], instance["features"], timeout=PEER_TIMEOUT)
    return Opinion(reply["outcome"], reply.get("errorIsNodeLocal", False), reply.get("results"), reply.get("error", ""))


def compare(instance: Instance, peer: Peer) -> Comparison:
    """All that is wrong with our answer, and what upstream does otherwise."""
    verdict = dra_oracle.solve(instance)
    our, their = ours(instance), theirs(instance, peer)
    complaints = [*judge(instance, our, verdict)]
    difference = None
    if verdict.outcome == "unknown":
        if their.outcome not in (our.outcome, "timeout") and known_difference(instance, their, verdict) is None:
            complaints.append(
                f"ours is {our.outcome}, theirs {their.outcome}, and the oracle cannot tell {their.error}"
            )
    elif (their.outcome, their.node_local) != (verdict.outcome, verdict.node_local):
        difference = known_difference(instance, their, verdict)
        if difference is None:
            complaints.append(
                f"theirs is {their.outcome}, the oracle {verdict.outcome} {verdict.reasons} {their.error}"
            )
    elif their.outcome == "allocated" and choices(instance, their) != verdict.choices:
        difference = "later alternative"
        if choices(instance, their) < verdict.choices:
            difference = known_difference(instance, their, verdict)
        if difference is None:
            complaints.append(f"theirs has better choices than the oracle: {choices(instance, their)}")
    if our.results and their.results and _devices(our.results) == _devices(their.results):
        own, other = _normal(our.results), _normal(their.results)
        if own != other:
            complaints.append(f"result is written otherwise: {json.dumps(own)} instead of {json.dumps(other)}")
    return Comparison(tuple(complaints), difference, our.outcome)


def judge(instance: Instance, our: Opinion, verdict: OracleVerdict) -> Iterator[str]:
    """What is wrong with our answer by the rules alone."""
    if our.outcome == "crash":
        yield f"crash {our.error}"
    elif verdict.outcome == "unknown" or (
        "constraint on all devices" in verdict.reasons and our.outcome in ("error", "not-allocated")
    ):
        pass  # nothing fits; whether upstream calls it an error depends on where its search comes first
    elif our.outcome != verdict.outcome:
        yield f"ours is {our.outcome}, the oracle {verdict.outcome} {verdict.reasons} {our.error}"
    elif our.node_local is not verdict.node_local:
        yield f"ours is node-local: {our.node_local}, the oracle {verdict.reasons} {our.error}"
    elif our.outcome == "allocated" and choices(instance, our) != verdict.choices:
        yield f"choices are {choices(instance, our)}, the best are {verdict.choices}"
    if our.results is not None:
        yield from (f"check {violation}" for violation in violations(instance, our.results))


def violations(instance: Instance, results: list[dict[str, Any]]) -> list[str]:
    """What the independent check finds."""
    given = instance["input"]
    gates = {GATES.get(name, f"DRA{name}") for name, enabled in instance["features"].items() if enabled}
    return check_results(
        results,
        given["node"],
        given["claimsToAllocate"],
        given["classes"],
        given["slices"],
        allocated=allocated(given),
        features=gates,
    )


def choices(instance: Instance, opinion: Opinion) -> tuple[int | None, ...]:
    """The alternative that each request got; None for one without alternatives."""
    indices: list[int | None] = []
    for claim, result in zip(instance["input"]["claimsToAllocate"], opinion.results or (), strict=True):
        named = {entry["request"] for entry in (result.get("devices") or {}).get("results") or ()}
        for request in claim["spec"]["devices"]["requests"]:
            names = [f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable", ())]
            chosen = [number for number, name in enumerate(names) if name in named]
            indices.append(chosen[0] if chosen else len(names) if names else None)
    return tuple(indices)


def _devices(results: list[dict[str, Any]]) -> list[list[tuple[str, ...]]]:
    """Who got what, in no order."""
    keys = ("request", "driver", "pool", "device")
    return [
        sorted(tuple(entry[key] for key in keys) for entry in result.get("devices", {}).get("results", ()))
        for result in results
    ]


def _normal(value: Any) -> Any:
    """Without what is empty, share ids, and the order of lists."""
    if isinstance(value, dict):
        parts = {key: "share" if key == "shareID" else _normal(part) for key, part in value.items()}
        return {key: parts[key] for key in sorted(parts) if parts[key] not in (None, False, "", [], {})}
    if isinstance(value, list):
        return sorted(map(_normal, value), key=lambda part: json.dumps(part, sort_keys=True))
    return value


def known_difference(instance: Instance, their: Opinion, verdict: OracleVerdict) -> str | None:
    """The documented difference that explains upstream's answer where the rules give another one; None for none."""
    if their.outcome == "timeout":
        return "time-out"
    if "CEL runtime error" in their.error:
        return "stops at a selector that fails"
    if "claim constraint would not be satisfied" in their.error:
        return "stops at a constraint on all devices"
    if verdict.outcome == "error" and "distinctAttribute while its gate is off" in verdict.reasons:
        return "distinctAttribute while its gate is off"
    late = {"compile", "amount", "selector fails", "constraint on all devices"}
    if verdict.outcome == "error" and late.issuperset(verdict.reasons):
        return "finds errors only where its search comes"
    if not instance["features"]["ListTypeAttributes"] and _relates_lists(instance):
        return "list attributes while their gate is off"
    for quirks in [*([quirk] for quirk in QUIRKS), [*QUIRKS]]:
        solution = dra_oracle.solve(instance, frozenset(quirks), 200 * dra_oracle.BUDGET)
        same = (solution.outcome, solution.node_local) == (their.outcome, their.node_local)
        if same and (solution.outcome != "allocated" or solution.choices <= choices(instance, their)):
            return " and ".join(quirks)
        if solution.outcome == "error" and late.issuperset(solution.reasons):
            return " and ".join([*quirks, "finds errors only where its search comes"])
    return None


def _relates_lists(instance: Instance) -> bool:
    """Whether a constraint names an attribute that is a list on some device."""
    related = {
        str(name).rpartition("/")[2]
        for claim in instance["input"]["claimsToAllocate"]
        for constraint in claim["spec"]["devices"].get("constraints", ())
        for name in (constraint.get("matchAttribute"), constraint.get("distinctAttribute"))
    }
    return any(
        name.rpartition("/")[2] in related and any(kind.endswith("s") for kind in value)
        for slice_ in instance["input"]["slices"]
        for device in slice_["spec"].get("devices", ())
        for name, value in device.get("attributes", {}).items()
    )


# -- Smaller instances -----------------------------------------------------------------------------------------------


def shrink(instance: Instance, fails: Callable[[Instance], bool]) -> Instance:
    """A smaller instance that still fails: parts are left out while it does."""
    attempts = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(instance):
            attempts += 1
            if attempts > SHRINKS:
                return instance
            if fails(smaller):
                instance, progress = smaller, True
                break
    return instance


def kind(complaint: str) -> str:
    """A complaint without names and numbers, to stay with one problem while shrinking."""
    return " ".join(re.findall(r"(?<![\w/.])[a-z-]{2,}(?![\w/.])", complaint))[:60]


_KEEP = {"metadata", "name", "spec", "driver", "pool", "node", "devices", "exactly", "deviceClassName"}
_KEEP |= {"allocationMode", "count", "expression", "cel", "generation", "resourceSliceCount"}
_LISTS = ("claimsToAllocate", "slices", "allocatedDevices", "allocatedSharedDeviceIDs", "aggregatedCapacity")


def _smaller(instance: Instance) -> Iterator[Instance]:
    for name in _LISTS:
        for index in range(len(instance["input"][name])):
            copy = deepcopy(instance)
            gone = copy["input"][name].pop(index)
            if name == "slices":
                # What is left of the pool is as complete as it was.
                for other in copy["input"][name]:
                    if all(other["spec"][key] == gone["spec"][key] for key in ("driver", "pool")):
                        other["spec"]["pool"]["resourceSliceCount"] -= 1
            yield copy
    for path in list(_paths(instance["input"])):
        copy = deepcopy(instance)
        parent: Any = copy["input"]
        for step in path[:-1]:
            parent = parent[step]
        del parent[path[-1]]
        yield copy


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """What could be left out, the big things first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(items):
        if path and key not in _KEEP:
            yield (*path, key)
        yield from _paths(child, (*path, key))
