"""Which claim uses which device, and the rules that hold across all claims."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from devalloc.api.quantity import floor_blocks
from devalloc_solver.check.device_records import NOTHING, CountedDraws
from devalloc_solver.check.pools import CheckedDevice, CheckedPool

Key = tuple[str, str]
"""(namespace, name) of a claim"""
_NOTHING: Mapping[str, int] = {}


class CheckedUse:
    """One device in the hands of one claim detail; with amounts (nano units) when it is a share."""

    __slots__ = ("amounts", "counted", "held", "key", "label", "pooled")

    def __init__(
        self,
        pooled: CheckedDevice,
        key: Key,
        label: str = "",
        amounts: Mapping[str, int] = _NOTHING,
        held: bool = False,
        counted: CountedDraws = NOTHING,
    ) -> None:
        self.pooled = pooled
        self.key = key
        """of the claim"""
        self.label = label
        """of the detail, if that is known"""
        self.amounts = amounts
        self.held = held
        """Whether the claim has it already. Existing overuse is no error of this answer, and leaves nothing (S18)."""
        self.counted = counted
        """What it counts for at least, whatever the pool publishes."""

    @property
    def user(self) -> str:
        """Claim and detail, such as "default/x: detail 0"."""
        return "/".join(self.key) + (f": {self.label}" if self.label else "")


class SharedTotals:
    """The shares of one device, added up."""

    __slots__ = ("amounts", "count")

    def __init__(self) -> None:
        self.count = 0
        self.amounts: dict[str, int] = {}

    def add(self, use: CheckedUse, times: int) -> None:
        self.count += times
        for name, nano in use.amounts.items():
            self.amounts[name] = self.amounts.get(name, 0) + times * nano


class PoolUse:
    """What is in use of one pool. Its sums tell quickly of most new uses that they break nothing."""

    __slots__ = ("closed", "drawn", "groups", "shares", "users")

    def __init__(self) -> None:
        self.users: dict[CheckedDevice, list[CheckedUse]] = {}
        self.shares: dict[CheckedDevice, SharedTotals] = {}
        self.groups: Counter[str] = Counter()
        """compatibility group -> uses of devices that carry it (S12a)"""
        self.drawn: dict[str, int] = {}
        """blocks of each resource that the devices in use draw, each device once (S12)"""
        self.closed = 0
        """uses by which nothing may be given but shares of what is in use: it lacks resources that are recorded"""

    @property
    def keys(self) -> Iterator[Key]:
        """The claims that use any of it."""
        return (use.key for users in self.users.values() for use in users)

    def add(self, use: CheckedUse) -> None:
        pooled, counted = use.pooled, use.counted
        users = self.users.get(pooled)
        self._sum_up(use, 1)
        if users is None:
            self.users[pooled] = users = [use]
            if pooled.draws or counted.blocks:
                self._draw(pooled, users, 1)
        elif counted.blocks:
            self._draw(pooled, users, -1)
            users.append(use)
            self._draw(pooled, users, 1)
        else:
            users.append(use)

    def remove(self, use: CheckedUse) -> None:
        pooled, counted = use.pooled, use.counted
        users = self.users[pooled]
        self._sum_up(use, -1)
        if len(users) == 1:
            if pooled.draws or counted.blocks:
                self._draw(pooled, users, -1)
            del self.users[pooled]
        elif counted.blocks:
            self._draw(pooled, users, -1)
            users.remove(use)
            self._draw(pooled, users, 1)
        else:
            users.remove(use)

    def _sum_up(self, use: CheckedUse, times: int) -> None:
        pooled = use.pooled
        self.closed += times * use.counted.is_alone
        for group in _groups_of(use):
            self.groups[group] += times
            if not self.groups[group]:
                del self.groups[group]
        if use.amounts:
            totals = self.shares.get(pooled) or self.shares.setdefault(pooled, SharedTotals())
            totals.add(use, times)
            if not totals.count:
                del self.shares[pooled]

    def has_shares_for(self, pooled: CheckedDevice, new: Sequence[CheckedUse]) -> bool:
        """Whether a device is used in shares only, the new ones included, and gives them all (S10, S11, S13)."""
        totals = self.shares.get(pooled, _NO_SHARES)
        if totals.count != len(self.users.get(pooled, ())) or not all(use.amounts for use in new):
            return False
        names = {name for use in new for name in use.amounts}
        return all(
            totals.amounts.get(name, 0) + sum(use.amounts.get(name, 0) for use in new) <= pooled.usable(name)
            for name in names
        )

    def has_room_for(self, devices: Mapping[CheckedDevice, Sequence[CheckedUse]]) -> bool:
        """Whether the pool has what new uses of its devices draw, and their groups are those in use (S12, S12a)."""
        groups = {group for new in devices.values() for use in new for group in _groups_of(use)}
        if groups and len(groups | self.groups.keys()) > 1:
            return False
        drawn = Counter(self.drawn)
        for pooled, new in devices.items():
            users = self.users.get(pooled, ())
            if not users or any(use.counted.blocks for use in new):
                drawn.update(_drawn_by(pooled, [*users, *new]))
                drawn.subtract(_drawn_by(pooled, users) if users else {})
        return all(drawn[name] <= capacity for pooled in devices for name, _, capacity in pooled.draws)

    def _draw(self, pooled: CheckedDevice, users: Sequence[CheckedUse], times: int) -> None:
        drawn = self.drawn
        if len(users) == 1 and not users[0].counted.blocks:
            for name, blocks, _ in pooled.draws:
                drawn[name] = drawn.get(name, 0) + times * blocks
            return
        for name, blocks in _drawn_by(pooled, users).items():
            drawn[name] = drawn.get(name, 0) + times * blocks


_NO_SHARES = SharedTotals()
_UNUSED = PoolUse()


class UsageAccount:
    """The uses of all devices that are in use, by pool, and what these devices draw from their pools."""

    def __init__(self) -> None:
        self.pools: dict[CheckedPool, PoolUse] = {}

    def add(self, uses: Iterable[CheckedUse]) -> None:
        owner, pool = None, _UNUSED
        for use in uses:
            if use.pooled.owner is not owner:
                owner = use.pooled.owner
                pool = self.pools.get(owner) or self.pools.setdefault(owner, PoolUse())
            pool.add(use)

    def remove(self, uses: Iterable[CheckedUse]) -> None:
        for use in uses:
            pool = self.pools[use.pooled.owner]
            pool.remove(use)
            if not pool.users:
                del self.pools[use.pooled.owner]

    def of(self, pool: CheckedPool) -> PoolUse:
        return self.pools.get(pool, _UNUSED)


def _groups_of(use: CheckedUse) -> set[str]:
    """The compatibility groups that a use counts for."""
    return {group for group in (use.pooled.compatibility_group, use.counted.group) if group is not None}


def _drawn_by(pooled: CheckedDevice, users: Iterable[CheckedUse]) -> dict[str, int]:
    """Blocks of each resource of its pool that a device draws once, however many use it (S12)."""
    drawn = {name: blocks for name, blocks, _ in pooled.draws}
    for use in users:
        for name, blocks in use.counted.blocks.items():
            drawn[name] = max(blocks, drawn.get(name, 0))
    return drawn


def are_exclusive(account: UsageAccount, uses: Sequence[CheckedUse]) -> bool:
    """Whether the new uses are of whole devices, one each, that are unused, and what they draw is available.

    Then there are no conflicts, which is quickly seen of most claims.
    """
    more: dict[tuple[CheckedPool, str], int] = {}
    owner, held = None, _UNUSED
    for use in uses:
        pooled = use.pooled
        if pooled.owner is not owner:
            owner = pooled.owner
            held = account.of(owner)
        if use.amounts or pooled in held.users or held.closed or pooled.compatibility_group is not None:
            return False
        for name, blocks, capacity in pooled.draws:
            more[owner, name] = new = more.get((owner, name), 0) + blocks
            if held.drawn.get(name, 0) + new > capacity:
                return False
    return len(uses) == 1 or len({use.pooled for use in uses}) == len(uses)


def conflicts(account: UsageAccount, uses: Sequence[CheckedUse]) -> Iterator[str]:
    """What new uses break of S10 to S13 beside those that are held. Uses of admin details are not among them (S14)."""
    by_pool: dict[CheckedPool, dict[CheckedDevice, list[CheckedUse]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        by_pool[use.pooled.owner][use.pooled].append(use)
    for owner, devices in by_pool.items():
        held = account.of(owner)
        for pooled, new in devices.items():
            earlier = held.users.get(pooled)
            if earlier is None and held.closed:
                yield f"{new[0].user}: device {pooled} is given although its pool lacks what claims recorded (S18)"
            if earlier is None and len(new) == 1 and not new[0].amounts:
                continue  # one user, who has all of it
            if held.has_shares_for(pooled, new):
                continue
            users = [*(earlier or ()), *new]
            yield from _whole_or_shared(users)
            yield from _shared_capacity(users)
        if not held.has_room_for(devices):
            together = {pooled: list(users) for pooled, users in held.users.items()}
            for pooled, new in devices.items():
                together.setdefault(pooled, []).extend(new)
            wanted = {name for pooled in devices for name in pooled.device.requests}
            yield from _pool_resources(together.values(), wanted)
            yield from _compatibility(together.values())


def _whole_or_shared(users: Sequence[CheckedUse]) -> Iterator[str]:
    """A whole device has one user; sharers never meet a whole-taker (S10, S13)."""
    earlier: CheckedUse | None = None
    earlier_whole: CheckedUse | None = None
    for use in users:
        other = earlier_whole if use.amounts else earlier
        if other is not None and not use.held:
            how, again = ("in shares" if each.amounts else "whole" for each in (other, use))
            yield f"{use.user}: device {use.pooled} is used {how} by {other.user} and {again} here (S10)"
        earlier = earlier or use
        if not use.amounts:
            earlier_whole = earlier_whole or use


def _shared_capacity(users: Sequence[CheckedUse]) -> Iterator[str]:
    """All shares of a device together fit its usable capacity (S10, S11)."""
    names = {name for use in users if not use.held for name in use.amounts}
    for name in sorted(names):
        sharers = [use for use in users if name in use.amounts]
        total = sum(use.amounts[name] for use in sharers)
        pooled = users[0].pooled
        if total > pooled.usable(name):
            new = next(use for use in sharers if not use.held)
            others = sorted({use.user for use in sharers} - {new.user})
            shared = f", shared with {', '.join(others)}" if others else ""
            yield f"{new.user}: device {pooled} gives more {name} than it has{shared} (S11)"


def _pool_resources(devices: Iterable[Sequence[CheckedUse]], wanted: Set[str]) -> Iterator[str]:
    """What the allocated devices of a pool draw from it fits its capacity, each device once (S12).

    Only resources that new devices draw on, the ``wanted`` ones, can be overdrawn by them.
    """
    distinct = [(_drawn_by(users[0].pooled, users), users) for users in devices]
    pool = distinct[0][1][0].pooled.pool
    for resource in pool.spec.resources:
        if resource.name not in wanted:
            continue
        drawn = sum(draws.get(resource.name, 0) for draws, _ in distinct)
        if drawn <= floor_blocks(resource.capacity, resource.block):
            continue
        for draws, users in distinct:
            if draws.get(resource.name) and not any(use.held for use in users):
                yield (
                    f"{users[0].user}: device {users[0].pooled} and the other devices in use draw {drawn} blocks of"
                    f" {resource.name}, and the pool has {floor_blocks(resource.capacity, resource.block)} (S12)"
                )
                break


def _compatibility(devices: Iterable[Sequence[CheckedUse]]) -> Iterator[str]:
    """Devices of one pool that carry a compatibility group carry the same one (S12a)."""
    carriers: dict[str, list[Sequence[CheckedUse]]] = defaultdict(list)
    for users in devices:
        groups = {users[0].pooled.compatibility_group, *(use.counted.group for use in users)}
        for group in sorted(group for group in groups if group is not None):
            carriers[group].append(users)
    if len(carriers) < 2:
        return
    for group, members in carriers.items():
        other = next(name for name in carriers if name != group)
        for users in members:
            if not any(use.held for use in users):
                yield (
                    f"{users[0].user}: device {users[0].pooled} of compatibility group {group} is used beside"
                    f" {carriers[other][0][0].pooled} of group {other} (S12a)"
                )
