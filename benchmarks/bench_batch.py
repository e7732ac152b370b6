"""How a large batch is allocated jointly: what is proven, how long it takes, and what a plain first fit finds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.fleets import scenario
from benchmarks.harness import Row, benchmark, timed
from devalloc_solver.assignment import Placement
from devalloc_solver.columns import allocate_batch
from devalloc_solver.demand import Mode, Slot, Unit
from devalloc_solver.goals import Level
from devalloc_solver.holdings import Ledger
from devalloc_solver.intake import read_documents
from devalloc_solver.snapshot import Device, Pool, Snapshot
from devalloc_solver.stages import Prepared, prepare
from tests.support.batches import Batch

SIZES = ((1000, 1000, 0.6), (1000, 2000, 0.7), (5000, 1000, 0.6))
"""(nodes, claims that wait, mean part of a node that is held already)"""


@benchmark(
    "batch",
    "Joint allocation of large batches",
    method="From the snapshot to allocations with device names: interning, the search with its bounds, names. The "
    "independent check and everything before the snapshot are shown beside it, once. Levels are satisfied claims of "
    "priority 2, 1 and 0, of so many; first fit takes the claims in the same order, node by node, device by device.",
    packages=("ortools", "numpy"),
)
def batch(runs: int) -> Iterator[Row]:
    for nodes, claims, fill in SIZES:
        documents = scenario(nodes, claims, fill=fill)
        start = time.perf_counter()
        intake = read_documents(documents)
        decoded = time.perf_counter()
        prepared = prepare(intake)
        ready = time.perf_counter()
        placements, levels = solve(prepared)
        begun = time.perf_counter()
        violations = Batch(prepared, placements, levels).violations()
        assert not violations, violations[:3]
        checked = time.perf_counter()
        first = first_fit(prepared)
        fitted = time.perf_counter()
        what: dict[str, str | int] = {
            "nodes": nodes,
            "claims": claims,
            "asked": _counts(Counter(d.claim.priority for unit in prepared.units for d in unit.demands)),
            "satisfied": _counts({level.priority: level.value for level in levels if level.priority is not None}),
            "bounds": _counts({level.priority: level.bound for level in levels if level.priority is not None}),
            "first fit": _counts(first),
            "first fit, s": f"{fitted - checked:.2f}",
            "decoding, s": f"{decoded - start:.2f}",
            "eligibility, s": f"{ready - decoded:.2f}",
            "check, s": f"{checked - begun:.2f}",
        }
        yield Row(what, timed(lambda prepared=prepared: solve(prepared), min(runs, 3)))


def solve(prepared: Prepared) -> tuple[list[Placement], list[Level]]:
    return allocate_batch(prepared.snapshot, prepared.holdings, prepared.units, placement="pack", ends=None)


def _counts(counts: Mapping[int, int]) -> str:
    return " / ".join(str(counts[priority]) for priority in sorted(counts, reverse=True))


# -- first fit -------------------------------------------------------------------------------------------------------


def first_fit(prepared: Prepared) -> dict[int, int]:
    """priority -> claims that the first node has room for, claim by claim: no score, nothing is moved.

    Within a node the first devices that fit are taken, the values to match in being tried in turn. Only for what
    `scenario` asks: whole devices, and attributes to match.
    """
    snapshot = prepared.snapshot
    ledger = Ledger.of(snapshot, prepared.holdings)
    free = {device.index for device in snapshot.devices if not ledger.in_use(device)}
    satisfied = {demand.claim.priority: 0 for unit in prepared.units for demand in unit.demands}
    for unit in prepared.units:
        chosen = next((found for node in snapshot.nodes if (found := _fit(snapshot, ledger, free, unit, node))), None)
        if chosen is None:
            continue
        for device in chosen:
            free.discard(device.index)
            ledger.whole.add(device.index)
            for name, blocks in device.draws:
                ledger.drawn[device.pool][name] += blocks
        satisfied[unit.demands[0].claim.priority] += 1
    return satisfied


def _fit(snapshot: Snapshot, ledger: Ledger, free: set[int], unit: Unit, node: str) -> list[Device] | None:
    demand = unit.demands[0]
    pools = snapshot.pools_by_node[node]
    values: list[object] = [None]
    if demand.match:
        values = list(dict.fromkeys(d.attributes.get(demand.match[0]) for pool in pools for d in pool.devices))
    for value in values:
        taken: list[Device] = []
        for alternatives in demand.details:
            for slot in alternatives:
                found = _take(ledger, free, pools, slot, demand.match[0] if demand.match else None, value, taken)
                if found:
                    taken += found
                    break
            else:
                break
        else:
            return taken
    return None


def _take(
    ledger: Ledger,
    free: set[int],
    pools: Sequence[Pool],
    slot: Slot,
    match: str | None,
    value: object,
    taken: Sequence[Device],
) -> list[Device] | None:
    assert slot.mode is Mode.WHOLE
    names = {device.index for device in taken}
    fitting: dict[object, list[Device]] = {}
    drawn = Counter({(d.pool, name): blocks for d in taken for name, blocks in d.draws})
    for pool in pools:
        for device in pool.devices:
            if device.index not in free or device.index in names or device.index not in slot.candidates.accepted:
                continue
            if match is not None and device.attributes.get(match) != value:
                continue
            if any(drawn[device.pool, n] + b > ledger.free_pool_blocks(device.pool, n) for n, b in device.draws):
                continue
            group = fitting.setdefault(device.attributes.get(slot.match[0]) if slot.match else None, [])
            group.append(device)
            if len(group) == slot.least:
                return group
    return None
