"""What holds of every overview."""

from __future__ import annotations

from collections import Counter

from devalloc.controller.overview import STATES, Device, Overview


def devices_of(found: Overview) -> list[tuple[str, Device]]:
    return [(card.name, device) for node in found.nodes for card in node.cards for device in card.devices]


def adds_up(found: Overview) -> None:
    """Whatever the fleet: the sums are those of their parts, which name each device once."""
    devices = devices_of(found)
    assert len(devices) == len({(pool, device.name) for pool, device in devices}) == found.counts.devices
    states = Counter(device.state for _, device in devices)
    assert {state: getattr(found.counts, state) for state in STATES} == {state: states[state] for state in STATES}
    assert found.counts.available == states["free"] + states["shared"]
    for node in found.nodes:
        assert node.counts.devices == sum(len(card.devices) for card in node.cards)
        for card in node.cards:
            assert card.counts.devices == len(card.devices)
    held = {(pool, device.name) for pool, device in devices if any(not each.is_admin for each in device.holders)}
    assert {(pool, device.name) for pool, device in devices if device.state in ("held", "shared")} == held
    assert found.pending == sum(claim.is_pending for claim in found.claims)
