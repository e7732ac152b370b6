"""Which claim uses which device, and the rules that hold across all claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from devalloc.api.quantity import floor_blocks
from devalloc_solver.check.device_records import NOTHING, CountedDraws
from devalloc_solver.check.pools import CheckedDevice, PoolKey

_NOTHING: Mapping[str, int] = {}


class CheckedUse:
    """One device in the hands of one claim detail; with amounts (nano units) when it is a share."""

    __slots__ = ("amounts", "counted", "held", "pooled", "user")

    def __init__(
        self,
        pooled: CheckedDevice,
        user: str,
        amounts: Mapping[str, int] = _NOTHING,
        held: bool = False,
        counted: CountedDraws = NOTHING,
    ) -> None:
        self.pooled = pooled
        self.user = user
        """Claim and detail, such as "default/x: detail 0"."""
        self.amounts = amounts
        self.held = held
        """Whether the claim has it already. Existing overuse is no error of this answer, and leaves nothing (S18)."""
        self.counted = counted
        """What it counts for at least, whatever the pool publishes."""


_NO_USERS: Mapping[CheckedDevice, Sequence[CheckedUse]] = {}


class UsageAccount:
    """The uses of all devices that are in use, by pool and device, and what these devices draw from their pools."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, dict[CheckedDevice, list[CheckedUse]]] = {}
        self._drawn: dict[PoolKey, dict[str, int]] = {}
        self._closed: dict[PoolKey, int] = {}

    def add(self, uses: Iterable[CheckedUse]) -> None:
        pools = self._pools
        for use in uses:
            pooled, counted = use.pooled, use.counted
            pool = pools.get(pooled.pool_key)
            if pool is None:
                pool = pools[pooled.pool_key] = {}
            users = pool.get(pooled)
            if counted.is_alone:
                self._closed[pooled.pool_key] = self._closed.get(pooled.pool_key, 0) + 1
            if users is None:
                pool[pooled] = users = [use]
                if pooled.draws or counted.blocks:
                    self._draw(pooled, users, 1)
            elif counted.blocks:
                self._draw(pooled, users, -1)
                users.append(use)
                self._draw(pooled, users, 1)
            else:
                users.append(use)

    def remove(self, uses: Iterable[CheckedUse]) -> None:
        for use in uses:
            pooled, counted = use.pooled, use.counted
            pool = self._pools[pooled.pool_key]
            users = pool[pooled]
            if counted.is_alone:
                self._closed[pooled.pool_key] -= 1
            if len(users) == 1:
                if pooled.draws or counted.blocks:
                    self._draw(pooled, users, -1)
                del pool[pooled]
                if not pool:
                    del self._pools[pooled.pool_key]
                    self._drawn.pop(pooled.pool_key, None)
            elif counted.blocks:
                self._draw(pooled, users, -1)
                users.remove(use)
                self._draw(pooled, users, 1)
            else:
                users.remove(use)

    def _draw(self, pooled: CheckedDevice, users: Sequence[CheckedUse], times: int) -> None:
        drawn = self._drawn.setdefault(pooled.pool_key, {})
        if len(users) == 1 and not users[0].counted.blocks:
            for name, blocks, _ in pooled.draws:
                drawn[name] = drawn.get(name, 0) + times * blocks
            return
        for name, blocks in _drawn_by(pooled, users).items():
            drawn[name] = drawn.get(name, 0) + times * blocks

    def of_pool(self, key: PoolKey) -> Mapping[CheckedDevice, Sequence[CheckedUse]]:
        return self._pools.get(key, _NO_USERS)

    def is_closed(self, key: PoolKey) -> bool:
        """Whether nothing may be given of a pool but shares of what is in use: it lacks resources that are recorded."""
        return bool(self._closed.get(key))

    def drawn(self, key: PoolKey) -> Mapping[str, int]:
        """Blocks of each resource of a pool that the devices in use draw, each device once (S12)."""
        return self._drawn.get(key, _NOTHING)


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
    more: dict[tuple[PoolKey, str], int] = {}
    key: PoolKey | None = None
    held: Mapping[CheckedDevice, object] = _NO_USERS
    for use in uses:
        pooled = use.pooled
        if pooled.pool_key != key:
            key = pooled.pool_key
            held = account.of_pool(key)
            if account.is_closed(key):
                return False
        if use.amounts or pooled in held or pooled.compatibility_group is not None:
            return False
        if pooled.draws:
            drawn = account.drawn(key)
            for name, blocks, capacity in pooled.draws:
                more[key, name] = new = more.get((key, name), 0) + blocks
                if drawn.get(name, 0) + new > capacity:
                    return False
    return len(uses) == 1 or len({use.pooled for use in uses}) == len(uses)


def conflicts(account: UsageAccount, uses: Sequence[CheckedUse]) -> Iterator[str]:
    """What new uses break of S10 to S13 beside those that are held. Uses of admin details are not among them (S14)."""
    by_pool: dict[PoolKey, dict[CheckedDevice, list[CheckedUse]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        by_pool[use.pooled.pool_key][use.pooled].append(use)
    for key, devices in by_pool.items():
        held = account.of_pool(key)
        for pooled, new in devices.items():
            earlier = held.get(pooled)
            if earlier is None and account.is_closed(key):
                yield f"{new[0].user}: device {pooled} is given although its pool lacks what claims recorded (S18)"
            if earlier is None and len(new) == 1 and not new[0].amounts:
                continue  # one user, who has all of it
            users = [*(earlier or ()), *new]
            yield from _whole_or_shared(users)
            yield from _shared_capacity(users)
        if next(iter(devices)).pool.spec.resources or any(pooled.compatibility_group is not None for pooled in devices):
            together = {pooled: list(users) for pooled, users in held.items()}
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
