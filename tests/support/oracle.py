"""The best answer to a small instance, by exhaustive search: goals 1 to 4 of claim-semantics S17, and 5 of its policy.

Everything that could be chosen is tried; what is left out is left out because it cannot be better:
- devices that are alike and in the same state stand for each other;
- a whole-taker never takes a device that it can do without;
- of a share only the set of devices is searched. Whether amounts exist is a question of its own (`_fits`), and amounts
  that suffice can be made irreducible by taking blocks away, which never needs another device;
- a set of claims is not tried once a part of it has failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import chain, combinations, product
from typing import Any

from tests.support.oracle_instance import ADMIN, SHARE, Claim, Detail, Device, Group, Instance, Key, Value, read

Choice = list[list[int]]
"""Per entry of a claim the alternatives that may be chosen."""


@dataclass(frozen=True)
class BestAnswer:
    """What every best answer has in common."""

    satisfied: frozenset[Key]
    one_of: Mapping[Key, list[int | None]]
    """Per satisfied claim, per entry: the chosen alternative, None where there is no oneOf."""
    pools: int
    devices: int
    unevenness: tuple[Fraction, ...] = ()
    """To spread: of the nodes, then of the pools."""
    new_places: tuple[int, ...] = ()
    """To pack: the nodes that come into use, then the pools."""


def solve(documents: Iterable[Mapping[str, Any]], *, nowhere: bool = False, policy: str | None = None) -> BestAnswer:
    """Goals 1 to 4 of S17 for these manifests; with a ``policy``, ``pack`` or ``spread``, goal 5 as well: of ``pack``
    what it says of nodes and pools.

    With ``nowhere`` a claim without group and pin may be on no node at all even where there are nodes. That only makes
    a difference for admin details that take all devices "that its node reaches" (S14): the network devices, then.
    """
    instance = read(documents)
    instance.nowhere = nowhere
    groups = _satisfied(instance)
    claims = [claim for group in groups for claim in group.claims]
    choices = {claim.key: [list(range(len(entry))) for entry in claim.entries] for claim in claims}
    for claim in sorted(claims, key=lambda c: (-c.priority, *c.order)):
        for position, alternatives in enumerate(choices[claim.key]):
            for alternative in list(alternatives):
                choices[claim.key][position] = [alternative]
                if len(alternatives) == 1 or _Search(instance, groups, choices).feasible():
                    break
    pools, devices, *cost = _Search(instance, groups, choices, policy=policy).smallest()
    return BestAnswer(
        satisfied=frozenset(claim.key for claim in claims),
        one_of={
            claim.key: [
                chosen[0] if one_of else None
                for chosen, one_of in zip(choices[claim.key], claim.is_one_of, strict=True)
            ]
            for claim in claims
        },
        pools=int(pools),
        devices=int(devices),
        unevenness=tuple(map(Fraction, cost)) if policy == "spread" else (),
        new_places=tuple(map(int, cost)) if policy == "pack" else (),
    )


def unevenness(
    instance: Instance, whole: Iterable[int], taken: Mapping[int, Mapping[str, int]]
) -> tuple[Fraction, Fraction]:
    """Goal 5 to spread, from its words: ``whole`` are devices that come into use beside those that are, ``taken`` the
    blocks of shares."""
    given = {*whole}
    of_pools: dict[int, Fraction] = defaultdict(Fraction)
    for index, device in enumerate(instance.devices):
        size = _size(instance, index)
        if index in given or device.held_whole:
            of_pools[device.pool] += size
        elif device.in_use or index in taken:
            shares = taken.get(index, {})
            parts = [
                Fraction(min(blocks, device.held.get(name, 0) + shares.get(name, 0)), blocks)
                for name, (blocks, _) in device.capacity.items()
                if blocks
            ]
            of_pools[device.pool] += size * (sum(parts) / len(parts) if parts else 0)
    of_nodes: dict[str, Fraction] = defaultdict(Fraction)
    capacities: Counter[str] = Counter()
    for number, pool in enumerate(instance.pools):
        if pool.node is not None:
            of_nodes[pool.node] += of_pools[number]
            capacities[pool.node] += _capacity(instance, number)
    nodes = sum((load**2 / capacities[node] for node, load in of_nodes.items() if load), Fraction())
    pools = sum((load**2 / _capacity(instance, number) for number, load in of_pools.items() if load), Fraction())
    return nodes, pools


def _drawn(instance: Instance, index: int) -> dict[str, int]:
    device = instance.devices[index]
    blocks = instance.pools[device.pool].blocks
    return {name: count for name, count in device.draws.items() if name in blocks and count}


def _card(instance: Instance, index: int) -> frozenset[str]:
    """The resources that a device draws on, and all that are drawn on together with these."""
    pool = instance.devices[index].pool
    others = [{*_drawn(instance, n)} for n, device in enumerate(instance.devices) if device.pool == pool]
    card = {*_drawn(instance, index)}
    while more := {name for names in others if names & card for name in names} - card:
        card |= more
    return frozenset(card)


def _size(instance: Instance, index: int) -> Fraction:
    """How much a device is that is in use whole."""
    card, drawn = _card(instance, index), _drawn(instance, index)
    if not card:
        return Fraction(1)
    blocks = instance.pools[instance.devices[index].pool].blocks
    return sum((Fraction(count, blocks[name]) for name, count in drawn.items() if blocks[name]), Fraction()) / len(card)


def _capacity(instance: Instance, pool: int) -> int:
    """Devices, those of one card being one."""
    members = [index for index, device in enumerate(instance.devices) if device.pool == pool]
    cards = [_card(instance, index) for index in members]
    return sum(not card for card in cards) + len({card for card in cards if card})


def new_places(instance: Instance, given: Iterable[int]) -> tuple[int, int]:
    """Goal 5 to pack, from its words: nodes that come into use by devices that are ``given``, then pools."""
    before = {device.pool for device in instance.devices if device.in_use}
    pools = {instance.devices[index].pool for index in given} - before
    nodes = {instance.pools[pool].node for pool in pools} - {instance.pools[pool].node for pool in before}
    return len(nodes - {None}), len(pools)


def satisfiable(documents: Iterable[Mapping[str, Any]], key: Key) -> bool:
    """Whether the claim (with its group) could be satisfied if it were the only one that waits."""
    instance = read(documents)
    return any(_alone(instance, group) for group in instance.groups if any(claim.key == key for claim in group.claims))


def _satisfied(instance: Instance) -> list[Group]:
    """The groups to satisfy: goal 1."""
    possible = [group for group in instance.groups if _alone(instance, group)]
    claims = sorted((claim for group in instance.groups for claim in group.claims), key=lambda c: c.order)
    levels = sorted({claim.priority for claim in claims}, reverse=True)

    def rank(chosen: Sequence[int]) -> list[Any]:
        keys = {claim.key for index in chosen for claim in possible[index].claims}
        vectors = [[claim.key not in keys for claim in claims if claim.priority == level] for level in levels]
        return [(sum(vector), vector) for vector in vectors]

    indexes = range(len(possible))
    subsets = chain.from_iterable(combinations(indexes, size) for size in range(len(possible) + 1))
    failed: list[set[int]] = []
    for subset in sorted(subsets, key=rank):
        groups = [possible[index] for index in subset]
        if any(part <= set(subset) for part in failed):
            continue
        if len(groups) < 2 or _Search(instance, groups).feasible():
            return groups
        failed.append(set(subset))
    raise AssertionError("the empty set of groups is feasible")


def _alone(instance: Instance, group: Group) -> bool:
    return not group.failed and len(group.nodes) < 2 and _Search(instance, [group]).feasible()


class _SearchDone(Exception):
    """The search has what it looked for."""


class _Search:
    """Depth first over groups (their node), claims, entries (the alternative, then its devices)."""

    def __init__(
        self,
        instance: Instance,
        groups: Sequence[Group],
        choices: Mapping[Key, Choice] | None = None,
        *,
        policy: str | None = None,
    ) -> None:
        self.instance = instance
        self.policy = policy
        self.pools = instance.pools
        self.devices = instance.devices
        self.groups = groups
        self.choices = choices or {}
        self.whole: set[int] = set()
        self.shares: dict[int, list[Detail]] = defaultdict(list)
        self.admin: dict[int, int] = defaultdict(int)
        self.free = [dict(pool.free) for pool in instance.pools]
        self.compatible = [list(pool.compatibility) for pool in instance.pools]
        self.best: tuple[int | Fraction, ...] | None = None
        self.first_only = False
        self.kinds = self._kinds(instance.groups)

    def feasible(self) -> bool:
        """Whether all groups can be satisfied together."""
        self.first_only = True
        try:
            self._group(0)
        except _SearchDone:
            return True
        return False

    def smallest(self) -> tuple[int | Fraction, ...]:
        """Fewest pools, then fewest devices, then what is best in goal 5, of an answer that satisfies all groups."""
        self._group(0)
        assert self.best is not None
        return self.best

    # -- the levels of the search ------------------------------------------------------------------------------------

    def _group(self, position: int) -> None:
        if position == len(self.groups):
            if self.first_only:
                raise _SearchDone
            self.best = min(self.best or self._cost(), self._cost())
            return
        group = self.groups[position]
        entries = [
            (claim, entry, self.choices[claim.key][index] if claim.key in self.choices else range(len(entry)))
            for claim in group.claims
            for index, entry in enumerate(claim.entries)
        ]
        for node in self._nodes(group):
            self._entry(node, entries, 0, {}, group.agreed, lambda: self._group(position + 1))

    def _nodes(self, group: Group) -> Iterable[str | None]:
        nodes = self.instance.nodes
        if self.instance.nowhere and not group.claims[0].in_group:
            return group.nodes or [*nodes, None]
        return group.nodes or nodes or [None]

    def _entry(
        self,
        node: str | None,
        entries: Sequence[tuple[Claim, tuple[Detail, ...], Sequence[int]]],
        position: int,
        agreed: Mapping[str, Value],
        together: Mapping[str, Value],
        done: Callable[[], None],
    ) -> None:
        """Choose for the entry at ``position``; ``agreed`` are the values of the claim's own matchAttributes,
        ``together`` those that members of the group agree on."""
        if position == len(entries):
            done()
            return
        claim, entry, alternatives = entries[position]
        if position and entries[position - 1][0] is not claim:
            agreed = {}
        bound = {name: together[name] for name in claim.shared if name in together}
        if any(bound[name] != value for name, value in agreed.items() if name in bound):
            return
        for alternative in alternatives:
            detail = entry[alternative]
            for chosen, values in self._sets(detail, (*claim.match, *claim.shared), node, {**agreed, **bound}):
                with_this = {name: values[name] for name in claim.match}
                with_all = {**together, **{name: values[name] for name in claim.shared}}
                self._apply(detail, chosen)
                if self._promising():
                    self._entry(node, entries, position + 1, with_this, with_all, done)
                self._undo(detail, chosen)

    def _cost(self) -> tuple[int | Fraction, ...]:
        used = self.whole | self.shares.keys() | self.admin.keys()
        cost = len({self.devices[index].pool for index in used}), len(used)
        if self.policy is None:
            return cost
        if self.policy == "pack":
            return (*cost, *new_places(self.instance, self.whole | self.shares.keys()))
        return (*cost, *unevenness(self.instance, self.whole, self._blocks()))

    def _blocks(self) -> dict[int, dict[str, int]]:
        """What shares take of devices, each being on one."""
        taken: dict[int, dict[str, int]] = {}
        for index, shares in self.shares.items():
            capacity, blocks = self.devices[index].capacity, Counter[str]()
            for share in shares:
                for name, amount in share.requests.items():
                    blocks[name] += -(-amount // capacity[name][1]) if name in capacity else 0
            taken[index] = dict(blocks)
        return taken

    def _promising(self) -> bool:
        return self.first_only or self.best is None or self._cost() < self.best

    # -- using devices -----------------------------------------------------------------------------------------------

    def _apply(self, detail: Detail, chosen: Iterable[int]) -> None:
        for index in chosen:
            if detail.mode == ADMIN:
                self.admin[index] += 1
                continue
            self._draw(index, +1)
            if detail.mode == SHARE:
                self.shares[index].append(detail)
            else:
                self.whole.add(index)

    def _undo(self, detail: Detail, chosen: Iterable[int]) -> None:
        for index in chosen:
            if detail.mode == ADMIN:
                self.admin[index] -= 1
                if not self.admin[index]:
                    del self.admin[index]
                continue
            if detail.mode == SHARE:
                self.shares[index].pop()
                if not self.shares[index]:
                    del self.shares[index]
            else:
                self.whole.discard(index)
            self._draw(index, -1)

    def _draw(self, index: int, sign: int) -> None:
        """Take or give back what the device costs its pool, once however many shares it has (S12)."""
        device = self.devices[index]
        if device.in_use or index in self.shares:
            return
        for resource, blocks in device.draws.items():
            self.free[device.pool][resource] -= sign * blocks
        if device.compatibility is not None:
            if sign > 0:
                self.compatible[device.pool].append(device.compatibility)
            else:
                self.compatible[device.pool].remove(device.compatibility)

    def _usable(self, index: int, detail: Detail) -> bool:
        device = self.devices[index]
        if detail.mode == ADMIN:
            return True
        if index in self.whole or device.held_whole:
            return False
        if detail.mode == SHARE:
            if not any(device.free(resource) for resource in detail.requests):
                return False
        elif index in self.shares or device.in_use:
            return False
        return device.in_use or index in self.shares or self._pools_hold([device])

    def _pools_hold(self, added: Sequence[Device]) -> bool:
        """Whether pool resources and compatibility (S12, S12a) allow these devices, none of them in use."""
        total: dict[tuple[int, str], int] = defaultdict(int)
        groups: dict[int, set[Value]] = defaultdict(set)
        for device in added:
            for resource, blocks in device.draws.items():
                total[device.pool, resource] += blocks
            if device.compatibility is not None:
                groups[device.pool].add(device.compatibility)
        return all(blocks <= self.free[pool][resource] for (pool, resource), blocks in total.items() if blocks) and all(
            len(values | set(self.compatible[pool])) == 1 for pool, values in groups.items()
        )

    # -- the sets of devices for one detail --------------------------------------------------------------------------

    def _sets(
        self, detail: Detail, spec_match: tuple[str, ...], node: str | None, agreed: Mapping[str, Value]
    ) -> Iterator[tuple[tuple[int, ...], Mapping[str, Value]]]:
        """Every set worth trying, with the values it agrees on."""
        names = tuple(dict.fromkeys((*detail.match, *spec_match)))
        reached = [i for i in detail.candidates if self.pools[self.devices[i].pool].node in (None, node)]
        by_value: dict[tuple[Value, ...] | None, list[int]] = defaultdict(list)
        for index in reached:
            values = tuple(value for name in names if (value := self.devices[index].value(name)) is not None)
            by_value[values if len(values) == len(names) else None].append(index)
        for shared, indexes in by_value.items():
            if shared is None or (detail.every and len(by_value) > 1):
                continue
            agreement = dict(zip(names, shared, strict=True))
            if not _agree(agreement, agreed):
                continue
            if not detail.every:
                yield from ((chosen, agreement) for chosen in self._choose(detail, indexes))
            elif detail.most is None or len(indexes) <= detail.most:
                yield tuple(indexes), agreement

    def _choose(self, detail: Detail, indexes: Sequence[int]) -> Iterator[tuple[int, ...]]:
        alike: dict[Any, list[int]] = defaultdict(list)
        for index in indexes:
            if self._usable(index, detail):
                state = tuple(sorted(id(share) for share in self.shares.get(index, ())))
                alike[self.kinds[index], state, index in self.whole, index in self.admin].append(index)
        bags = list(alike.values())
        most = min(detail.most or len(indexes), len(indexes))
        for size in range(detail.least, most + 1):
            for counts in _compositions(size, [len(bag) for bag in bags]):
                chosen = tuple(i for bag, count in zip(bags, counts, strict=True) for i in bag[:count])
                if self._suits(detail, chosen):
                    yield chosen

    def _suits(self, detail: Detail, chosen: Sequence[int]) -> bool:
        if detail.mode == ADMIN:
            return True
        new = [self.devices[i] for i in chosen if not self.devices[i].in_use and i not in self.shares]
        if not self._pools_hold(new):
            return False
        if detail.mode == SHARE:
            return self._shares_fit(detail, chosen)
        devices = [self.devices[i] for i in chosen]
        if not _meets(detail, devices):
            return False
        # A set from which a device can be left out is never better than the smaller one.
        return len(devices) == detail.least or not any(
            _meets(detail, devices[:i] + devices[i + 1 :]) for i in range(len(devices))
        )

    def _shares_fit(self, detail: Detail, chosen: Sequence[int]) -> bool:
        places: dict[int, list[int]] = {id(detail): list(chosen)}
        details = {id(detail): detail}
        for index, shares in self.shares.items():
            for share in shares:
                places.setdefault(id(share), []).append(index)
                details[id(share)] = share
        for resource in {resource for d in details.values() for resource in d.requests}:
            wants = tuple(
                (d.requests[resource], tuple(places[key])) for key, d in details.items() if resource in d.requests
            )
            involved = {index for _, where in wants for index in where}
            blocks = {
                i: (self.devices[i].free(resource), self.devices[i].capacity.get(resource, (0, 1))[1]) for i in involved
            }
            if not _fits(wants, blocks):
                return False
        return True

    def _kinds(self, groups: Sequence[Group]) -> list[Any]:
        """What makes a device differ from its neighbours."""
        claims = [claim for group in groups for claim in group.claims]
        details = [detail for claim in claims for entry in claim.entries for detail in entry]
        common = {name for claim in claims for name in (*claim.match, *claim.shared)}
        names = sorted({name for detail in details for name in detail.match} | common)
        candidate_of: dict[int, list[int]] = defaultdict(list)
        for number, detail in enumerate(details):
            for index in detail.candidates:
                candidate_of[index].append(number)
        return [
            (
                device.pool,
                tuple(candidate_of[index]),
                tuple(device.value(name) for name in names),
                device.compatibility,
                tuple(sorted(device.capacity.items())),
                tuple(sorted(device.draws.items())),
                (device.held_whole, device.in_use, tuple(sorted(device.held.items()))),
            )
            for index, device in enumerate(self.devices)
        ]


def _agree(values: Mapping[str, Value], agreed: Mapping[str, Value]) -> bool:
    return all(values[name] == value for name, value in agreed.items())


def _meets(detail: Detail, devices: Sequence[Device]) -> bool:
    """Whole devices by their full capacities (S10)."""
    return (
        len(devices) >= detail.least
        and all(sum(d.full(name) for d in devices) >= amount for name, amount in detail.requests.items())
        and all(sum(d.full(name) for d in devices) <= amount for name, amount in detail.limits.items())
    )


def _compositions(total: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to take ``total`` things out of bags of these sizes."""
    if not limits:
        if total == 0:
            yield ()
        return
    if total > sum(limits):
        return
    for count in range(min(total, limits[0]), -1, -1):
        for rest in _compositions(total - count, limits[1:]):
            yield count, *rest


def _fits(wants: Sequence[tuple[int, Sequence[int]]], blocks: Mapping[int, tuple[int, int]]) -> bool:
    """Whether every (amount in nano, devices) is served from the devices' (free blocks, nano per block)."""
    wants = [(amount, [index for index in where if blocks[index][0]]) for amount, where in wants]
    order = sorted(
        (index for index in blocks if blocks[index][0]), key=lambda index: (blocks[index][1], index), reverse=True
    )
    place = {index: position for position, index in enumerate(order)}
    return _packs(
        tuple((amount, tuple(sorted(place[i] for i in where))) for amount, where in wants),
        tuple(blocks[index] for index in order),
    )


@cache
def _packs(wants: tuple[tuple[int, tuple[int, ...]], ...], blocks: tuple[tuple[int, int], ...]) -> bool:
    """The same with devices by position, coarse blocks first: their blocks are handed out one by one.

    What is left when all have one block size is a transport problem in whole blocks, solvable exactly when no set of
    takers wants more than its devices have. In base units that is necessary for mixed sizes, too.
    """
    wants = tuple(want for want in wants if want[0] > 0)
    sizes = {size for _, size in blocks}
    unit = sizes.pop() if len(sizes) == 1 else 1
    for count in range(1, len(wants) + 1):
        for takers in combinations(wants, count):
            reachable = {position for _, where in takers for position in where}
            room = sum(blocks[position][0] * blocks[position][1] for position in reachable)
            if sum(-(-amount // unit) for amount, _ in takers) * unit > room:
                return False
    if not sizes:
        return True
    (free, size), *rest = blocks
    here = [number for number, (_, where) in enumerate(wants) if where and where[0] == 0]
    tops = [min(free, -(-wants[number][0] // size)) for number in here]
    for parts in product(*(range(top, -1, -1) for top in tops)):
        if sum(parts) <= free:
            taken = dict(zip(here, parts, strict=True))
            left = tuple(
                (amount - taken.get(number, 0) * size, tuple(position - 1 for position in where if position))
                for number, (amount, where) in enumerate(wants)
            )
            if _packs(left, tuple(rest)):
                return True
    return False
