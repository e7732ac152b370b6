"""Kubernetes' own allocator and ours on the same instances of resource.k8s.io, in one run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Row, benchmark, timed
from devalloc_solver import dra
from devalloc_solver.answer_types import AllocationResult
from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from tests.support import upstream_allocator
from tests.support.dra_differential import allocated
from tests.support.dra_hard_instances import API, HardInstance, as_documents, everyday, hard
from tests.support.dra_instances import Instance
from tests.support.upstream_allocator import UpstreamPeer

HARD_RUNS = 3
"""Runs of a hard instance: upstream may take its whole time limit for each."""


@benchmark(
    "upstream",
    "Kubernetes' own allocator and ours, on the same instances",
    method="Upstream (k8s.io/dynamic-resource-allocation/structured, built from a pinned module): `NewAllocator` and "
    f"`Allocate` on decoded objects with compiled CEL, {upstream_allocator.TIMEOUT:.0f} s limit as in kube-"
    "scheduler. Ours: one `dra.allocate` from manifests to the checked answer, in the hard families with selectors "
    "never seen before; or one `allocate` of a warm fleet, which also chooses the node, checks and commits. Everyday "
    "work is some of the 8 "
    f"GPUs of a node, by class and request selectors and a matchAttribute. Hard families: {HARD_RUNS} runs.",
    packages=("ortools",),
)
def compare(runs: int) -> Iterator[Row]:
    with upstream_allocator.running(lambda line: print(line, file=sys.stderr, flush=True)) as peer:
        for nodes in (1, 100, 1000):
            for gpus in (1, 4, 8):
                work = f"everyday: {gpus} of 8 GPUs, {nodes} {'node' if nodes == 1 else 'nodes'}"
                instance = everyday(nodes, gpus)
                yield from _rows(work, instance, peer, runs, _warm)
                yield Row(_what(work, "devalloc, warm fleet", "allocated"), _fleet_seconds(instance, runs))
        for nodes in (100, 1000):
            yield from _last_free(nodes, peer, runs)
        for one in hard():
            yield from _rows(one.name, one.instance, peer, min(runs, HARD_RUNS), _cold, one)


def _rows(
    work: str,
    instance: Instance,
    peer: UpstreamPeer,
    runs: int,
    caller: Callable[[Instance], Callable[[], object]],
    expected: HardInstance | None = None,
) -> Iterator[Row]:
    reply = peer.ask(instance["input"], instance["features"], runs=runs + 1)
    pairs = zip(reply["newAllocatorNanoseconds"], reply["allocateNanoseconds"], strict=True)
    seconds = [(made + took) / 1e9 for made, took in pairs]
    yield Row(_what(work, f"upstream {upstream_allocator.version()}", reply["outcome"]), tuple(seconds[1:] or seconds))
    outcome = "not-allocated" if _allocate(instance) is None else "allocated"
    if outcome != reply["outcome"] != "timeout" or (expected and expected.feasible is not (outcome == "allocated")):
        raise AssertionError(f"{work}: the answers differ: {outcome}, {reply['outcome']}")
    yield Row(_what(work, "devalloc, from manifests", outcome), timed(caller(instance), runs))


def _last_free(nodes: int, peer: UpstreamPeer, runs: int) -> Iterator[Row]:
    """All nodes but one are full: upstream asks them one after the other, the fleet knows."""
    work = f"everyday: 1 GPU, all but one of {nodes} nodes full"
    instance = everyday(nodes, 1, full=True)
    names = [{"metadata": {"name": f"node-{number}"}} for number in range(nodes)]
    reply = peer.ask({**instance["input"], "node": None, "nodes": names}, instance["features"], runs=runs + 1)
    pairs = zip(reply["newAllocatorNanoseconds"], reply["allocateNanoseconds"], strict=True)
    seconds = tuple((made + took) / 1e9 for made, took in pairs)
    yield Row(_what(work, f"upstream {upstream_allocator.version()}", reply["outcome"]), seconds[1:])
    yield Row(_what(work, "devalloc, warm fleet", "allocated"), _fleet_seconds(instance, runs))


def _fleet_seconds(instance: Instance, runs: int) -> tuple[float, ...]:
    """Seconds of each allocation of a warm fleet, after one that is not counted; the release is not measured."""
    fleet = ResourceClaimFleet.from_manifests(as_documents(instance))
    [claim] = instance["input"]["claimsToAllocate"]
    seconds = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        answer = fleet.allocate({"apiVersion": API, "kind": "ResourceClaim", **claim})
        seconds.append(time.perf_counter() - start)
        if not answer["allocated"]:
            raise AssertionError(f"the fleet has nothing: {answer['message']}")
        fleet.release("default", claim["metadata"]["name"])
    return tuple(seconds[1:])


def _what(work: str, who: str, outcome: str) -> dict[str, str | int]:
    return {"work": work, "allocator": who, "answer": outcome}


def _warm(instance: Instance) -> Callable[[], object]:
    """The same question again, as a scheduler has it that met the class before."""
    return lambda: _allocate(instance)


def _cold(instance: Instance) -> Callable[[], object]:
    """The question with other texts each time, so that no compiled or evaluated expression can be used again."""
    text = json.dumps(instance).replace('"expression": "', '"expression": "RUN != 0 && ')
    numbers = iter(range(1, 1_000_000))
    fresh: list[Any] = [json.loads(text.replace("RUN", str(next(numbers)))) for _ in range(HARD_RUNS + 1)]
    return lambda: _allocate(fresh.pop())


def _allocate(instance: Instance) -> list[AllocationResult] | None:
    given = instance["input"]
    features = [name for name, enabled in instance["features"].items() if enabled]
    return dra.allocate(
        given["node"],
        given["claimsToAllocate"],
        given["classes"],
        given["slices"],
        allocated=allocated(given),
        features=features,
    )
