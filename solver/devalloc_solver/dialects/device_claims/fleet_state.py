"""The objects of a fleet of DevicePools, DeviceClasses and DeviceClaims, and what each change of them means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from operator import attrgetter
from typing import Any

from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver.cel.device_claims.reads import attributes_read
from devalloc_solver.check.incremental import IncrementalChecker
from devalloc_solver.dialects.device_claims.fleet_explainer import DeviceClaimsExplainer
from devalloc_solver.dialects.device_claims.fleet_rules import DeviceClaimRules
from devalloc_solver.dialects.device_claims.manifest_records import (
    ClaimRecord,
    ManifestRecord,
    full_name,
    invalid_pools,
    pools_of,
    select_valid,
    without_status,
)
from devalloc_solver.dialects.device_claims.manifests import ConfigKey, ProblemInput, configs_of, is_config
from devalloc_solver.dialects.device_claims.parts import WholeDevices
from devalloc_solver.dialects.device_claims.placed_claims import status_of_answer
from devalloc_solver.dialects.device_claims.status import ghosts_of, held_by_invalid, held_devices
from devalloc_solver.fleet.node_index import HeldAmounts, HeldDevice, HeldDevices
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.fleet.pool_states import NodeRecord
from devalloc_solver.fleet.state import FleetState, Name, Node
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.ghosts import (
    snapshot_with_ghosts,
    without_ghosts,
)
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import (
    Pool,
    Snapshot,
    join_pools,
    numbered_from,
    take_snapshot,
    without_duplicate_pools,
)


class DeviceFleetState(FleetState):
    """The state of a fleet in the dialect of DeviceClaims."""

    claim_kind = "DeviceClaim"
    objects: dict[Name, list[ManifestRecord]]

    def __init__(self, documents: Iterable[ManifestRecord], policy: PlacementPolicy) -> None:
        """Read everything at once."""
        super().__init__(((document.name, document) for document in documents), policy)
        self.pools: dict[Node, dict[str, DevicePool]] = defaultdict(dict)
        """by node and name, those that are valid together (S2)"""
        self._invalid_pools: frozenset[str] = frozenset()
        """names of pools that are left out"""
        self._configs: dict[ConfigKey, dict[str, Any]] = {}
        """the configuration objects, which the rules share"""
        self._are_rules_stale = False
        """whether classes have changed since the rules were made"""
        self.configs_edition = object()
        """another one whenever there are others than before"""
        self.judge = IncrementalChecker()
        self._wholes = WholeDevices()
        self._load()

    def _read_by_classes(self) -> frozenset[str]:
        classes = [document.object for document in self.of_kind("DeviceClass")]
        texts = [each.spec.constraints for each in classes if isinstance(each, DeviceClass) and each.spec.constraints]
        return frozenset().union(*(attributes_read(text) or () for text in texts))

    def _load(self) -> None:
        by_name: dict[str, list[DevicePool]] = defaultdict(list)
        for pool in pools_of(self.of_kind("DevicePool")):
            by_name[pool.metadata.name].append(pool)
        for name, same in by_name.items():
            self.judge.set_pools(name, same)
            for pool in _valid_together(same):
                self.pools[pool.spec.node_name][name] = pool
        self.load_nodes([*self.pools])
        for full, manifests in self.objects.items():
            if full[0] not in ("DeviceClaim", "DevicePool"):
                self._configs |= _configs_among(manifests)
        self._rules = DeviceClaimRules(self.index.kinds, self._read_classes(), self.index.allowance, self._wholes)
        self.refusals = DeviceClaimsExplainer(self.places, self.holders)
        self._read_invalid_pools()
        self.judge.set_classes(self._rules.problem_input.classes.values())
        for key in sorted({(name[1], name[2]) for name in self.objects if name[0] == "DeviceClaim"}):
            self._read_claim(key)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _read_node_pools(self, node: Node, held: Sequence[HeldDevice], changed: Set[object]) -> Snapshot | None:
        snapshot = _read_pools(self.pools[node], self._pools_before(node, changed))
        if ghosts := ghosts_of(snapshot, ((None, entry) for entry in held)):
            snapshot = snapshot_with_ghosts(snapshot, ghosts)
        if self._wholes.put(node, snapshot):
            self.index.forget()
        if not self.pools[node]:
            del self.pools[node]
            return None
        return snapshot

    def _pools_before(self, node: Node, changed: Set[object]) -> Mapping[str, Pool]:
        """The pools of a node as they were published and read, by name, but for those that have changed."""
        record = self.index.record_of(node)
        pools = () if record is None else record.snapshot.pools
        return {pool.name: without_ghosts(pool) for pool in pools if pool.name not in changed}

    def _nodes_of(self, held: HeldDevices, entry: HeldDevice) -> Sequence[Node]:
        """Where a device is, or every place where it was, as far as that is known (S2, S13)."""
        nodes = self._nodes_of_pool(held.node, entry.pool)
        if len(nodes) < 2:
            return nodes
        there = [n for n in nodes if any(one.name == entry.device for one in self.pools[n][entry.pool].spec.devices)]
        return there or nodes

    def _nodes_of_pool(self, node: str | None, pool: str) -> Sequence[Node]:
        """Every place where the pool may be, where the node is not told."""
        if node is not None:
            if pool in self.pools.get(node, ()):
                return (node,)
            return (None,) if pool in self.pools.get(None, ()) else ()
        same = pools_of(self.objects.get(full_name("DevicePool", None, pool), ()))
        return [p.spec.node_name for p in _valid_together(same)]

    def _find(self, node: Node, record: NodeRecord, entry: HeldDevice) -> Sequence[tuple[int, HeldAmounts | None]]:
        device, ghost = (record.find(entry.pool, entry.device, ghost=is_ghost) for is_ghost in (False, True))
        devices = [] if device is None else [(device, entry.amounts)]
        return devices if ghost is None else [*devices, (ghost, None)]

    # -- changes -------------------------------------------------------------------------------------------------------

    def replace(self, document: ManifestRecord) -> None:
        """An object is new, or other than it was."""
        kind, namespace, name = document.name
        before = self.objects.get(document.name, ())
        if kind == "DeviceClaim":
            key = namespace, name
            held = self.allocations.get(key)
            with self.holders.no_gain_if_unchanged(key):
                self._forget_claim(key)
                self.objects[document.name] = [document]
                self._read_claim(key)
            if self._may_be_wrong(document, before, held):
                self.edition += 1
            return
        # Pools of one name on several nodes come from files (S2), and each is replaced on its own.
        elsewhere = [each for each in before if each.node != document.node]
        remaining = elsewhere if kind == "DevicePool" and len(elsewhere) < len(before) else []
        self.objects[document.name] = [*remaining, document]
        self._changed(document.name, before)

    def _may_be_wrong(
        self, document: ManifestRecord, before: Sequence[ManifestRecord], held: HeldDevices | None
    ) -> bool:
        """Whether something may be wrong with a claim or with what it holds, now that it replaced another state."""
        if not isinstance(document, ClaimRecord):
            return True
        now = self.allocations.get(document.key)
        if now is None:
            return False
        specs = [each.spec for each in before if isinstance(each, ClaimRecord)]
        return now != held or len(before) != 1 or specs != [document.spec]

    def remove(self, name: Name) -> bool:
        before = self.objects.pop(name, None)
        if before is None:
            return False
        if name[0] == "DeviceClaim":
            self._forget_claim((name[1], name[2]))
        else:
            self._changed(name, before)
        return True

    def release(self, key: Key) -> None:
        """The claim keeps its spec and holds nothing any more."""
        name = full_name("DeviceClaim", *key)
        self._forget_claim(key)
        self.objects[name] = [without_status(each) for each in self.objects[name]]

    def _changed(self, name: Name, before: Sequence[ManifestRecord]) -> None:
        """An object other than a claim has changed. Costs what depends on it: machines are named by no class or claim,
        configuration objects are only copied, and classes are read once for all changes until they are asked for."""
        if name[0] == "DevicePool":
            self.edition += 1
            self._pools_changed(name[2])
            return
        now = self.objects.get(name, ())
        if name[0] == "DeviceClass" or any(document.problems for document in (*before, *now)):
            self.edition += 1
        old, new = _configs_among(before), _configs_among(now)
        for key in old.keys() - new.keys():
            del self._configs[key]
        self._configs |= new
        if old.keys() != new.keys():
            self._rules.configs_changed()
            self.configs_edition = object()
        self._are_rules_stale |= name[0] == "DeviceClass"

    @property
    def rules(self) -> DeviceClaimRules:
        """What classes and configuration objects say now."""
        if self._are_rules_stale:
            self._are_rules_stale = False
            self._classes_changed()
        self._rules.kinds = self.index.kinds
        return self._rules

    def _read_classes(self) -> ProblemInput:
        return replace(select_valid(self.of_kind("DeviceClass")), configs=self._configs)

    def _classes_changed(self) -> None:
        """Classes decide what claims may take, and which entries of old ones are for admins only (S14)."""
        before = _admin_classes(self._rules.problem_input)
        self._rules = self._rules.renewed(self._read_classes())
        self.judge.set_classes(self._rules.problem_input.classes.values())
        self.index.forget()
        if before != _admin_classes(self._rules.problem_input):
            for key in list(self.allocations):
                self._hold_again(key)

    def expression_failed(self, *, begin: bool) -> None:
        """See ``DeviceClaimRules.after_failure``."""
        self.edition += 1
        self._rules = self.rules.after_failure(begin=begin)
        self.index.forget()

    def _pools_changed(self, name: str) -> None:
        """Pools of one name: nodes get them or lose them, and claims keep what is still there (S18)."""
        records = self.objects.get(full_name("DevicePool", None, name), ())
        same = pools_of(records)
        nodes = {node for node, pools in self.pools.items() if name in pools}
        valid = {pool.spec.node_name: pool for pool in _valid_together(same)}
        nodes |= valid.keys()
        for node in nodes:
            self.pools[node].pop(name, None)
            if node in valid:
                self.pools[node][name] = valid[node]
        self._put_again(nodes, self.holders.of_pools((name,)), {name})
        self.judge.set_pools(name, same)
        if len(valid) < len(records) or name in self._invalid_pools:
            self._read_invalid_pools()

    def _read_invalid_pools(self) -> None:
        """Pools that are left out: reasons name them."""
        documents = [*self.of_kind("DevicePool")]
        left_out = {document.name[2] for document in documents if document.manifest is not None}
        for pool in pools_of(documents):
            if self.pools.get(pool.spec.node_name, {}).get(pool.metadata.name) is not pool:
                left_out.add(pool.metadata.name)
        self._invalid_pools = frozenset(left_out)
        self.refusals.invalid_pools = invalid_pools(documents)

    # -- what claims hold ----------------------------------------------------------------------------------------------

    def _read_claim(self, key: Key) -> None:
        """Take note of what a claim came in with (S18), valid or not (S13)."""
        problem_input = select_valid(self.objects.get(full_name("DeviceClaim", *key), ()))
        for claim in problem_input.claims:
            if claim.is_allocated:
                self.judge.hold(claim)
                self._hold(key, held_devices(claim, self.rules.problem_input.classes))
        for refused in problem_input.refused:
            if refused.status is not None:
                self.judge.hold_rejected(refused)
                held, old = held_by_invalid(refused), self.allocations.get(key)
                if old is not None:  # several of one name: all that any of them holds
                    self._let_go(key)
                    held = replace(held, entries=(*old.entries, *held.entries))
                self._hold(key, held)

    def grant(self, claim: ClaimRecord, placed: PlacedClaim) -> None:
        """A claim has what its place gives it, from now on."""
        key = claim.key
        self.objects[claim.name] = [claim.with_answer(placed.written)]
        self.holders.grant(key, placed.held, placed.items)
        self.judge.grant(claim, placed.answer)

    def record(self, claim: ClaimRecord, answer: dict[str, Any]) -> None:
        """The same for an answer that the stages gave."""
        self._forget_claim(claim.key)
        written = claim.with_answer(status_of_answer(answer))
        self.objects[claim.name] = [written]
        self._hold(claim.key, held_devices(written.model, self.rules.problem_input.classes))
        self.judge.grant(claim, answer)

    def _hold_again(self, key: Key) -> None:
        """What counts as held depends on classes: read it back."""
        self._let_go(key)
        self.judge.release(key)
        self._read_claim(key)

    def _forget_claim(self, key: Key) -> None:
        """It holds nothing here any more."""
        self._let_go(key)
        self.judge.release(key)

    # -- claims --------------------------------------------------------------------------------------------------------

    def pending(self) -> Iterator[ClaimRecord]:
        """The kept claims that are valid and hold nothing."""
        for document in self.of_kind("DeviceClaim"):
            if isinstance(document, ClaimRecord) and document.key not in self.allocations:
                yield document

    def everything(self, claims: Sequence[ManifestRecord]) -> ProblemInput:
        """The problem of the whole fleet and of some pending claims."""
        wanted = {document.name for document in claims}
        groups = {(document.name[1], document.group) for document in claims if document.group is not None}
        documents = [*claims]
        for name, same in self.objects.items():
            if name[0] != "DeviceClaim":  # of objects that no class or claim can name only those that are wrong
                is_named = name[0] in ("DevicePool", "DeviceClass") or is_config(same[0].object)
                documents += [each for each in same if is_named or each.problems]
            elif name not in wanted:
                documents += [each for each in same if each.is_allocated or (name[1], each.group) in groups]
        return select_valid(documents)


def _read_pools(pools: Mapping[str, DevicePool], read: Mapping[str, Pool]) -> Snapshot:
    """The pools of a node. Those that were ``read`` before stay the same objects if they keep their numbers."""
    fresh, _ = take_snapshot([pool for name, pool in pools.items() if name not in read])
    old = [pool for name, pool in read.items() if name in pools]
    if not old:
        return fresh
    ordered = sorted([*fresh.pools, *old], key=attrgetter("order"))
    first, numbered = 0, []
    for number, pool in enumerate(ordered):
        is_same = pool.index == number and (not pool.devices or pool.devices[0].index == first)
        numbered.append(pool if is_same else numbered_from(pool, number, first))
        first += len(pool.devices)
    return join_pools(numbered)


def _valid_together(pools: Sequence[DevicePool]) -> list[DevicePool]:
    if len(pools) == 1:
        return list(pools)
    return without_duplicate_pools(list(pools))[0]


def _configs_among(documents: Iterable[ManifestRecord]) -> dict[ConfigKey, dict[str, Any]]:
    return configs_of(document.object for document in documents if document.object is not None)


def _admin_classes(problem_input: ProblemInput) -> set[str]:
    return {name for name, each in problem_input.classes.items() if each.spec.admin_access}
