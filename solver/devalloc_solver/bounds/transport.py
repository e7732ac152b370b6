"""Whether demand entries can all be served from classes of devices: a transport problem, by augmenting paths."""

from __future__ import annotations

from collections.abc import Sequence


def can_serve_all(demand_entries: Sequence[tuple[int, int]], sizes: Sequence[int]) -> bool:
    """``demand_entries`` are (mask of the classes they may take of, devices wanted); every device goes to one."""
    wanted = 0
    for candidate_mask, need in demand_entries:
        wanted += need
        if need > sum(size for position, size in enumerate(sizes) if candidate_mask >> position & 1):
            return False
    if wanted > sum(sizes):
        return False
    if len(demand_entries) < 2:
        return True
    free = list(sizes)
    given = [[0] * len(sizes) for _ in demand_entries]
    for number, (_, need) in enumerate(demand_entries):
        while need:
            moved = _augment(demand_entries, free, given, number, need)
            if not moved:
                return False
            need -= moved
    return True


def _augment(
    demand_entries: Sequence[tuple[int, int]], free: list[int], given: list[list[int]], number: int, need: int
) -> int:
    """Serve up to ``need`` more devices to an entry along one path, moving others aside; how many, 0 for none."""
    came: dict[int, tuple[int, int] | None] = {number: None}
    """demand entry -> (demand entry it makes room for, class it gives up)"""
    queue = [number]
    for entry in queue:
        candidate_mask = demand_entries[entry][0]
        for position, left in enumerate(free):
            if not candidate_mask >> position & 1:
                continue
            if left:
                return _move_along(came, free, given, entry, position, min(need, left))
            for other in range(len(demand_entries)):
                if other not in came and given[other][position]:
                    came[other] = (entry, position)
                    queue.append(other)
    return 0


def _move_along(
    came: dict[int, tuple[int, int] | None],
    free: list[int],
    given: list[list[int]],
    entry: int,
    position: int,
    room: int,
) -> int:
    """Move devices along the path that ends at a free class."""
    path: list[tuple[int, int, int | None]] = []
    here: int | None = entry
    while here is not None:
        step = came[here]
        path.append((here, position, None if step is None else step[1]))
        if step is not None:
            room = min(room, given[here][step[1]])
            position = step[1]
            here = step[0]
        else:
            here = None
    free[path[0][1]] -= room
    for who, takes, gives in path:
        given[who][takes] += room
        if gives is not None:
            given[who][gives] -= room
    return room
