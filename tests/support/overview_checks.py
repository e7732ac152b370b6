"""Invariants of every overview."""

from __future__ import annotations

from collections import Counter

from devalloc.usage.overview import STATES, DeviceSummary, Overview


def devices_of(view: Overview) -> list[tuple[str, DeviceSummary]]:
    return [(card.name, device) for node in view.nodes for card in node.cards for device in card.devices]


def adds_up(view: Overview) -> None:
    """Whatever the fleet: the sums are those of their parts, which name each device once."""
    devices = devices_of(view)
    assert len(devices) == len({(pool, device.name) for pool, device in devices}) == view.counts.devices
    states = Counter(device.state for _, device in devices)
    assert {state: getattr(view.counts, state) for state in STATES} == {state: states[state] for state in STATES}
    assert view.counts.available == states["free"] + states["shared"]
    for node in view.nodes:
        assert node.counts.devices == sum(len(card.devices) for card in node.cards)
        for card in node.cards:
            assert card.counts.devices == len(card.devices)
    held = {(pool, device.name) for pool, device in devices if any(not each.is_admin for each in device.holders)}
    assert {(pool, device.name) for pool, device in devices if device.state in ("held", "shared")} == held
    assert view.pending == sum(claim.is_pending for claim in view.claims)
