"""What a discovery says, in the words of the tests."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.pool import AttributeValue, Device, DevicePool
from devalloc.api.problems import Problem
from devalloc.api.quantity import ceil_blocks, floor_blocks
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import discover


@dataclass(frozen=True)
class DiscoveredPools:
    """The pools of one host by the names of their devices."""

    pools: list[DevicePool]
    problems: list[Problem]
    devices: dict[str, Device] = field(default_factory=dict)
    homes: dict[str, DevicePool] = field(default_factory=dict)

    @classmethod
    def on(cls, root: Path, node_name: str = "node-a", **settings: Any) -> DiscoveredPools:
        records = {each.name: settings.pop(each.name) for each in fields(DeviceRecords) if each.name in settings}
        config = InventoryConfig(records=DeviceRecords(**records), **settings)
        answer = discover(root, node_name=node_name, config=config)
        inventory = cls(answer.pools, answer.problems)
        for pool in answer.pools:
            for device in pool.spec.devices:
                assert device.name not in inventory.devices, f"{device.name} is in two pools"
                inventory.devices[device.name] = device
                inventory.homes[device.name] = pool
        return inventory

    @property
    def manifests(self) -> list[dict[str, Any]]:
        return [pool.to_manifest() for pool in self.pools]

    @property
    def bytes(self) -> bytes:
        return json.dumps(self.manifests).encode()

    def attributes(self, device: str) -> dict[str, AttributeValue]:
        """The effective attributes of a device (claim-semantics S3)."""
        pool = {a.name: a.value for a in self.homes[device].spec.attributes}
        return pool | {a.name: a.value for a in self.devices[device].attributes}

    def names(self, **wanted: AttributeValue) -> list[str]:
        """The devices with all these attribute values, in order."""
        return [name for name in self.devices if wanted.items() <= self.attributes(name).items()]

    def unavailable(self, device: str) -> str | None:
        """Why a device is not offered; None when it is."""
        reason = self.attributes(device).get(UNAVAILABLE)
        return None if reason is None else str(reason)

    def fits(self, *devices: str) -> bool:
        """True when ordinary claims may hold all of these devices at once (claim-semantics S6a, S12, S12a)."""
        assert len(set(devices)) == len(devices)
        if any(self.unavailable(device) for device in devices):
            return False
        for pool in self.pools:
            chosen = [device for device in devices if self.homes[device] is pool]
            groups = {self.attributes(device).get(COMPATIBILITY_GROUP) for device in chosen} - {None}
            if len(groups) > 1:
                return False
            drawn: Counter[str] = Counter()
            capacity = {resource.name: resource for resource in pool.spec.resources}
            for device in chosen:
                for name, amount in self.devices[device].requests.items():
                    if name not in capacity:
                        return False
                    drawn[name] += ceil_blocks(amount, capacity[name].block)
            if any(floor_blocks(capacity[n].capacity, capacity[n].block) < blocks for n, blocks in drawn.items()):
                return False
        return True

    def most(self, devices: list[str]) -> int:
        """How many of the devices fit together, taken greedily in order."""
        chosen: list[str] = []
        for device in devices:
            if self.fits(*chosen, device):
                chosen.append(device)
        return len(chosen)
