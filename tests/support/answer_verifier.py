"""Verify that an answer keeps the rules and that its reasons are true, independently of the solver's own check."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, GROUP
from devalloc.api.quantity import Quantity
from tests.support import oracle
from tests.support.oracle_instance import SHARE, WHOLE, Claim, Detail, Device, Instance, Key, Value, read

COMPETITION = {"LostToHigherPriority", "LostToCompetition"}
Manifest = Mapping[str, Any]
Answer = Mapping[str, Any]


def complaints(documents: Sequence[Manifest], answer: Answer) -> list[str]:
    """Everything that is wrong with the answer, goals 1 to 4 of S17 included; [] when nothing is."""
    instance = read(documents)
    answers = {(a["namespace"], a["name"]): a for a in answer["claims"]}
    violations = [
        *_goals(documents, instance, answers),
        *_objective(instance, answer, answers),
        *_Verifier(instance, answers).complaints(),
    ]
    return violations + [text for key in answers for text in _reason(documents, instance, answers, key)]


def broken_rules(documents: Sequence[Manifest], claims: Sequence[Answer]) -> list[str]:
    """What in the ``claims`` of an answer breaks S7 to S15, whether or not there is a better one."""
    return list(_Verifier(read(documents), {(a["namespace"], a["name"]): a for a in claims}).complaints())


def _goals(documents: Sequence[Manifest], instance: Instance, answers: Mapping[Key, Answer]) -> Iterator[str]:
    best = oracle.solve(documents)
    new = {key: a for key, a in answers.items() if a["allocated"] and key not in instance.allocated}
    one_of = {key: a["oneOf"] or [None] * len(best.one_of.get(key, ())) for key, a in new.items()}
    used = _used(instance, answers)
    pools = {(node, pool) for node, pool, _ in used}
    got = oracle.BestAnswer(frozenset(new), one_of, len(pools), len(used))
    # Whether a claim with admin details may be nowhere, the rules do not say.
    if got != best and got != oracle.solve(documents, nowhere=True):
        yield f"{got} is not the best answer, {best}"


def _objective(instance: Instance, answer: Answer, answers: Mapping[Key, Answer]) -> Iterator[str]:
    """The levels that the answer states of itself: true, and proven."""
    used = _used(instance, answers)
    satisfied = Counter(c.priority for g in instance.groups for c in g.claims if answers[c.key]["allocated"])
    for level in answer["objective"]["levels"]:
        true = {
            "satisfied": satisfied[level.get("priority", 0)],
            "pools": len({(node, pool) for node, pool, _ in used}),
            "devices": len(used),
        }.get(level["goal"], level["value"])
        if level["value"] != true or level["bound"] != true:
            yield f"objective says {level}, and it is {true} (S17)"
    if answer["optimal"] is not True:
        yield "a small instance is not proven optimal (S17)"


def _used(instance: Instance, answers: Mapping[Key, Answer]) -> set[tuple[str | None, str, str]]:
    """(node, pool, device) of all claims answered now."""
    new = [a for key, a in answers.items() if a["allocated"] and key not in instance.allocated]
    return {(_node(a, entry, instance), *entry) for a in new for entry in _entries(a)}


def _entries(answer: Answer) -> list[tuple[str, str]]:
    return [(entry["devicePoolName"], entry["deviceName"]) for entry in answer["allocations"]]


def _node(answer: Answer, entry: tuple[str, str], instance: Instance) -> str | None:
    network = {pool.name for pool in instance.pools if pool.node is None}
    return None if entry[0] in network else answer["node"]


class _Verifier:
    """S7 to S15 for the claims that the answer satisfies, recomputed from its entries."""

    def __init__(self, instance: Instance, answers: Mapping[Key, Answer]) -> None:
        self.instance = instance
        self.answers = answers
        self.whole: dict[int, list[str]] = defaultdict(list)
        self.shares: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def complaints(self) -> Iterator[str]:
        for key in self.instance.allocated:
            if not self.answers[key]["allocated"]:
                yield f"{key}: came in allocated and is not echoed so (S18)"
        for group in self.instance.groups:
            done = [self.answers[claim.key] for claim in group.claims if self.answers[claim.key]["allocated"]]
            if done and len(done) < len(group.claims):
                yield f"{[claim.key for claim in group.claims]}: a group is satisfied in part (S7)"
            nodes = {answer["node"] for answer in done} | (group.nodes if done else set())
            if len(nodes) > 1:
                yield f"{[claim.key for claim in group.claims]}: members on {nodes} (S7)"
            for claim in group.claims:
                if self.answers[claim.key]["allocated"]:
                    for text in self._claim(claim, self.answers[claim.key]):
                        yield f"{claim.key}: {text}"
        yield from self._devices()

    def _claim(self, claim: Claim, answer: Answer) -> Iterator[str]:
        node, annotations = answer["node"], answer["annotations"]
        if node is not None and annotations.get(ALLOCATED_NODE) != node:
            yield f"annotation {ALLOCATED_NODE} is not the node {node} (S2)"
        one_of = answer["oneOf"] or [None] * len(claim.entries)
        indexes = json.loads(annotations[ALLOCATION_DETAILS])
        labels = [str(i) if j is None else f"{i}.{j}" for i, j in enumerate(one_of)]
        if indexes != sorted(indexes, key=labels.index) or set(indexes) != set(labels):
            yield f"allocation-details {indexes} do not follow the spec {labels} (S18)"
        chosen: list[tuple[Detail, list[tuple[int, Mapping[str, int]]]]] = []
        for label, alternative, entry in zip(labels, one_of, claim.entries, strict=True):
            chosen.append((entry[alternative or 0], []))
            for index, allocation in zip(indexes, answer["allocations"], strict=True):
                if index == label:
                    device = self._find(node, allocation["devicePoolName"], allocation["deviceName"])
                    if device is None:
                        yield f"{allocation} is not within reach of {node} (S7)"
                        return
                    given = allocation.get("allocations", [])
                    amounts = {part["name"]: Quantity.parse(part["allocation"]).nano for part in given}
                    chosen[-1][1].append((device, amounts))
        devices = [self.instance.devices[device] for _, entries in chosen for device, _ in entries]
        if all(device.key[0] is None for device in devices) and node is not None and not self._has_node(claim):
            yield f"network devices only, yet node {node} (S7)"
        for detail, entries in chosen:
            yield from self._detail(detail, node, entries)
            self._record(claim, detail, entries)
        yield from _match(claim.match, devices)

    def _has_node(self, claim: Claim) -> bool:
        """The claim is pinned or in a group, whose node it then has."""
        return claim.in_group or any(claim in group.claims and group.nodes for group in self.instance.groups)

    def _find(self, node: str | None, pool: str, name: str) -> int | None:
        for index, device in enumerate(self.instance.devices):
            if device.key[0] in (None, node) and device.key[2:] == (pool, name):
                return index
        return None

    def _detail(self, detail: Detail, node: str | None, entries: list[tuple[int, Mapping[str, int]]]) -> Iterator[str]:
        devices = [self.instance.devices[index] for index, _ in entries]
        names = [device.key for device in devices]
        if len(set(names)) < len(names):
            yield f"a device twice in one detail: {names}"
        if not {index for index, _ in entries} <= set(detail.candidates):
            yield f"not all of {names} are candidates (S5, S6, S6a, S12)"
        if len(devices) < detail.least or (detail.most is not None and len(devices) > detail.most):
            yield f"{len(devices)} devices, wanted {detail.least} to {detail.most} (S8, S9)"
        yield from _match(detail.match, devices)
        if detail.mode == SHARE:
            yield from self._share(detail, entries)
            return
        if any(amounts for _, amounts in entries):
            yield f"amounts on devices that are not shared: {names} (S10)"
        if detail.every:
            matching = {i for i in detail.candidates if self.instance.devices[i].key[0] in (None, node)}
            if matching != {index for index, _ in entries}:
                yield f"{names} are not all that match on {node} (S14)"
        for name, amount in detail.requests.items():
            if sum(device.full(name) for device in devices) < amount:
                yield f"{names} have too little {name} (S10)"
        for name, amount in detail.limits.items():
            if sum(device.full(name) for device in devices) > amount:
                yield f"{names} have too much {name} (S10)"

    def _share(self, detail: Detail, entries: list[tuple[int, Mapping[str, int]]]) -> Iterator[str]:
        for index, amounts in entries:
            device = self.instance.devices[index]
            if not amounts or any(amount <= 0 for amount in amounts.values()):
                yield f"an empty share of {device.key} (S11)"
            if not amounts.keys() <= detail.requests.keys() & device.capacity.keys():
                yield f"{dict(amounts)} of {device.key} was not asked for, or is not there"
            elif any(amount % device.capacity[name][1] for name, amount in amounts.items()):
                yield f"{dict(amounts)} of {device.key} is not in whole blocks (S11)"
        for name, amount in detail.requests.items():
            given = [(a[name], self.instance.devices[i].capacity.get(name, (0, 1))[1]) for i, a in entries if name in a]
            total = sum(part for part, _ in given)
            if total < amount:
                yield f"{total} nano of {name}, requested {amount} (S8)"
            if any(total - block >= amount for _, block in given):
                yield f"a block of {name} more than needed (S11)"

    def _record(self, claim: Claim, detail: Detail, entries: list[tuple[int, Mapping[str, int]]]) -> None:
        for index, amounts in entries:
            if detail.mode == WHOLE:
                self.whole[index].append(str(claim.key))
            elif detail.mode == SHARE:
                for name, amount in amounts.items():
                    self.shares[index][name] += amount

    def _devices(self) -> Iterator[str]:
        """S12, S12a, S13: what all claims together take."""
        drawn: dict[tuple[int, str], int] = defaultdict(int)
        groups: dict[int, set[Value]] = defaultdict(set)
        for index in self.whole.keys() | self.shares.keys():
            device = self.instance.devices[index]
            shared = index in self.shares
            if len(self.whole[index]) + shared + device.held_whole > 1 or (self.whole[index] and device.in_use):
                yield f"{device.key} has two owners (S10, S13)"
            for name, amount in self.shares[index].items() if shared else ():
                if amount > device.free(name) * device.capacity.get(name, (0, 1))[1]:
                    yield f"{device.key} gives more {name} than it has (S10)"
            if not device.in_use:
                for name, blocks in device.draws.items():
                    drawn[device.pool, name] += blocks
                if device.compatibility is not None:
                    groups[device.pool].add(device.compatibility)
        for (pool, name), blocks in drawn.items():
            if blocks > self.instance.pools[pool].free[name]:
                yield f"pool {self.instance.pools[pool].name} gives more {name} than it has (S12)"
        for pool, values in groups.items():
            if len(values | self.instance.pools[pool].compatibility) > 1:
                yield f"pool {self.instance.pools[pool].name} mixes compatibility groups (S12a)"


def _match(names: Sequence[str], devices: Sequence[Device]) -> Iterator[str]:
    for name in names:
        values = {device.value(name) for device in devices}
        if len(values) > 1 or None in values:
            yield f"matchAttributes {name}: {values} (S15)"


def _reason(
    documents: Sequence[Manifest], instance: Instance, answers: Mapping[Key, Answer], key: Key
) -> Iterator[str]:
    """S19: an unsatisfied claim has a reason, and it is true."""
    answer = answers[key]
    reason = answer["reason"]
    if answer["allocated"]:
        if reason is not None:
            yield f"{key}: allocated with reason {reason}"
        return
    if not reason or not answer["message"]:
        yield f"{key}: unsatisfied without a reason or message"
        return
    if key in instance.reasons:
        if reason not in instance.reasons[key]:
            yield f"{key}: reason {reason}, but it is {instance.reasons[key]}"
        return
    alone = oracle.satisfiable(documents, key)
    if alone != (reason in COMPETITION):
        yield f"{key}: reason {reason}, though it {'fits' if alone else 'does not fit'} without other waiting claims"
    named = answer.get("blockers") or ()
    blockers = {(b["namespace"], b["name"]) for b in named if b["kind"] == "claim"}
    if (alone and not blockers) or len(blockers) < len(named):
        return  # what is besides claims, tests/conformance/test_reasons_true.py takes away
    written = after(documents, answers)
    if blockers and not oracle.satisfiable(_without(written, blockers), key):
        yield f"{key}: still does not fit without its blockers {sorted(blockers)}"
    groups = {_key(d): d["metadata"].get("annotations", {}).get(GROUP) for d in documents if d["kind"] == "DeviceClaim"}
    holders = sorted(k for k, a in answers.items() if a["allocated"])
    # Whether a member of the claim's own group can stand in its way (released, it has to be satisfied again), the
    # rules do not say.
    others = [k for k in holders if groups[key] is None or (k[0], groups[k]) != (key[0], groups[key])]
    if len(blockers) not in (_smallest(written, key, others), _smallest(written, key, holders)):
        yield f"{key}: {reason}, blockers {sorted(blockers)}, not the fewest of {holders} whose release would do"


def _smallest(documents: Sequence[Manifest], key: Key, holders: Sequence[Key]) -> int:
    """How many of the holders must go until the claim fits; 0 when not even all suffice."""
    for size in range(1, len(holders) + 1):
        for released in combinations(holders, size):
            if oracle.satisfiable(_without(documents, set(released)), key):
                return size
    return 0


def after(documents: Sequence[Manifest], answers: Mapping[Key, Answer]) -> list[Manifest]:
    """The documents as they are once the answer is written to the claims."""
    written = []
    for document in documents:
        answer = answers.get(_key(document)) if document["kind"] == "DeviceClaim" else None
        if answer and answer["allocated"] and "status" not in document:
            metadata = document["metadata"]
            annotations = metadata.get("annotations", {}) | answer["annotations"]
            document = {
                **document,
                "metadata": {**metadata, "annotations": annotations},
                "status": {"allocations": answer["allocations"]},
            }
        written.append(document)
    return written


def _key(document: Manifest) -> Key:
    return document["metadata"].get("namespace", "default"), document["metadata"]["name"]


def _without(documents: Sequence[Manifest], keys: set[Key]) -> list[Manifest]:
    return [document for document in documents if document["kind"] != "DeviceClaim" or _key(document) not in keys]
