"""The order in which to go through the stacks of a cell: so that few counters are half used at any time."""

from __future__ import annotations

from collections.abc import Sequence


def counter_by_counter(touched: Sequence[frozenset[int]]) -> list[int]:
    """Positions of ``touched`` (the counters that each takes from), those that finish a counter together.

    Next is the counter that the fewest are left for, the first of equals, with all that take from it. On a card with
    its memory slices as counters that goes along the card, slice by slice.
    """
    left = dict.fromkeys(range(len(touched)))
    order: list[int] = []
    users: dict[int, dict[int, None]] = {}
    for position, counters in enumerate(touched):
        for counter in counters:
            users.setdefault(counter, {})[position] = None
    while users:
        counter = min(users, key=lambda name: (len(users[name]), name))
        for position in users.pop(counter):
            del left[position]
            order.append(position)
            for other in touched[position] - {counter}:
                if other in users:
                    del users[other][position]
                    if not users[other]:
                        del users[other]
    return [*left, *order]
