"""The pools of a random instance of resource.k8s.io: slices, their devices, and what is in use of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

Manifest = dict[str, Any]

NODE = "n1"
LABELS = {"zone": "a", "rack": "7"}
DRIVERS = ("a.io", "b.io")


@dataclass
class RandomPools:
    """Pools as they are drawn, one after the other."""

    rng: Random
    themes: set[str]
    slices: list[Manifest] = field(default_factory=list)
    devices: list[tuple[str, str, Manifest]] = field(default_factory=list)
    """(driver, pool, device) of all slices, in use or not, seen by the node or not"""

    def has(self, theme: str, chance: float = 1.0) -> bool:
        return theme in self.themes and self.rng.random() < chance

    def add_pool(self, number: int) -> None:
        rng = self.rng
        # Names are reused between drivers: a pool is known by both.
        driver, pool = rng.choice(DRIVERS), f"p{rng.choice([0, 0, number])}"
        if any(slice_["spec"]["driver"] == driver and slice_["spec"]["pool"]["name"] == pool for slice_ in self.slices):
            return
        sets = self.counter_sets() if self.has("counters", 0.8) else []
        selection = self.selection()
        specs: list[Manifest] = []
        if sets:
            halves = [sets] if len(sets) == 1 or rng.random() < 0.7 else [sets[:1], sets[1:]]
            where = selection if "perDeviceNodeSelection" not in selection else {"allNodes": True}
            specs += [{**where, "sharedCounters": half} for half in halves]
        twin = self.device(driver, 0, sets)
        total = 0
        for part in range(2 if rng.random() < 0.3 else 1):
            devices = []
            for _ in range(self.size(part)):
                name = {"name": f"d{total}"}
                # Equal devices are what an exhaustive search stumbles over, and what a clever one may get wrong.
                device = {**twin, **name} if rng.random() < 0.35 or "limits" in self.themes else None
                devices.append(device or {**self.device(driver, total, sets), **name})
                total += 1
            where = selection if not part or rng.random() < 0.7 else {"nodeName": "n2"}
            if "perDeviceNodeSelection" in where:
                devices = [{**device, **self.selection_of_device()} for device in devices]
            alpha = {"skipNodeOperations": ["*"]} if self.has("alpha", 0.3) else {}
            specs.append({**where, **alpha, "devices": devices})
        self.publish(driver, pool, specs)

    def size(self, part: int) -> int:
        """How many devices a slice has; `part` tells the pool's slices apart."""
        if "limits" in self.themes and not part:
            return self.rng.randint(36, 40)
        return self.rng.randint(5, 10) if "large" in self.themes else self.rng.randint(2, 5 - part)

    def publish(self, driver: str, pool: str, specs: list[Manifest]) -> None:
        """Slices of one generation; sometimes with something wrong about them."""
        rng = self.rng
        count, generation = len(specs), rng.choice([1, 2])
        flaw = rng.choice(_FLAWS) if self.has("broken", 0.4) else ""
        if flaw == "incomplete":
            count += rng.choice([1, 1, -1]) if count > 1 else 1
        elif flaw == "duplicate device":
            owner = next(spec for spec in specs if "devices" in spec)
            owner["devices"] = [*owner["devices"], dict(owner["devices"][0])]
        elif flaw == "unknown counter":
            lacking = rng.choice([{"counterSet": "none", "counters": {"c": {"value": "1"}}}, _draw("s0", "none", "1")])
            owner = rng.choice([spec for spec in specs if "devices" in spec])
            owner["devices"] = [{**owner["devices"][0], "consumesCounters": [lacking]}, *owner["devices"][1:]]
        elif flaw == "duplicate counter set":
            doubled = [spec for spec in specs if "sharedCounters" in spec]
            specs += [dict(spec) for spec in doubled[:1]]
            count = len(specs)
        for number, spec in enumerate(specs):
            self.add_slice(driver, pool, generation, count, number, spec)
        if flaw in ("outdated elsewhere", "outdated here"):
            here = {"nodeName": NODE} if flaw == "outdated here" else {"nodeName": "n2"}
            newer = generation + (1 if flaw == "outdated elsewhere" or rng.random() < 0.5 else -1)
            self.add_slice(driver, pool, newer, 1, 9, {**here, "devices": [{"name": "d0"}]})
        for spec in specs:
            self.devices += [(driver, pool, device) for device in spec.get("devices", ())]

    def add_slice(self, driver: str, pool: str, generation: int, count: int, number: int, spec: Manifest) -> None:
        about = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}}
        name = f"{driver[0]}-{pool}-{generation}-{number}"
        self.slices.append({"metadata": {"name": name}, "spec": {**about, **spec}})

    def selection(self) -> Manifest:
        if not self.has("network"):
            return {"nodeName": "n2" if self.rng.random() < 0.05 else NODE}
        if self.rng.random() < 0.3:
            return {"perDeviceNodeSelection": True}
        return self.selection_of_device()

    def selection_of_device(self) -> Manifest:
        rng = self.rng
        kind = rng.randrange(8)
        if kind < 2:
            return {"nodeName": NODE if rng.random() < 0.7 else "n2"}
        if kind < 4:
            return {"allNodes": True}
        requirements = [
            _requirement("zone", "In", "a", "c"),
            _requirement("rack", "Exists"),
            _requirement("zone", "NotIn", "b"),
            _requirement("rack", "Gt", "5"),
            _requirement("rack", "Lt", "7"),
            _requirement("gone", "DoesNotExist"),
            _requirement("zone", "In", "b"),
        ]
        term: Manifest = {"matchExpressions": rng.sample(requirements, rng.choice([1, 1, 2]))}
        if rng.random() < 0.2:
            term["matchFields"] = [_requirement("metadata.name", "In", rng.choice([NODE, NODE, "n2"]))]
        return {"nodeSelector": {"nodeSelectorTerms": [term]}}

    def counter_sets(self) -> list[Manifest]:
        return [
            {"name": f"s{number}", "counters": {name: {"value": self.total()} for name in ("c", "e")[: 1 + number]}}
            for number in range(self.rng.choice([1, 1, 2]))
        ]

    def total(self) -> str:
        return self.rng.choice(["2", "3", "4", "4", "5", "4500m"])

    def device(self, driver: str, number: int, sets: list[Manifest]) -> Manifest:
        rng = self.rng
        device: Manifest = {"name": "", "attributes": self.attributes(driver, number)}
        shared = self.has("shares", 0.7)
        if shared or rng.random() < 0.3:
            device["capacity"] = {"m": self.capacity(shared)}
            if shared and rng.random() < 0.3:
                device["capacity"]["n"] = self.capacity(shared)
        if shared:
            device["allowMultipleAllocations"] = True
        if sets and rng.random() < 0.8:
            drawn = rng.sample(sets, 1 if rng.random() < 0.7 else len(sets))
            device["consumesCounters"] = [
                {"counterSet": set_["name"], "counters": {name: {"value": self.draw()} for name in set_["counters"]}}
                for set_ in drawn
            ]
        if device.get("consumesCounters") and self.has("alpha", 0.15):
            device["consumesCounters"][0]["compatibilityGroups"] = ["g"]
        if self.has("taints", 0.35):
            device["taints"] = [
                {"key": rng.choice("kl"), "value": rng.choice("vw"), "effect": rng.choice(_EFFECTS)}
                for _ in range(rng.choice([1, 1, 2]))
            ]
        if self.has("binding", 0.5):
            device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
        if self.has("binding", 0.3):
            device["bindsToNode"] = True
        return device

    def draw(self) -> str:
        return self.rng.choice(["1", "1", "2", "3", "1500m", "0"])

    def attributes(self, driver: str, number: int) -> Manifest:
        rng = self.rng
        attributes: Manifest = {
            "model": {"string": rng.choice(["big", "big", "small"])},
            "numa": {"int": rng.choice([0, 0, 1])},
            "x.org/root": {"string": rng.choice("rrrs")},
            "serial": {"int": number},
            "firmware": {"version": rng.choice(["1.2.3", "2.0.0", "2.0.0-rc.1"])},
            "ok": {"bool": rng.random() < 0.8},
        }
        if self.has("lists", 0.8):
            attributes["x.org/root"] = {"strings": sorted(rng.sample("rstu", rng.choice([1, 2, 2, 3])))}
            attributes["firmware"] = rng.choice(
                [{"versions": ["1.2.3", "2.0.0"]}, {"versions": ["2.0.0"]}, {"version": "2.0.0"}]
            )
            attributes["numa"] = rng.choice([{"ints": sorted(rng.sample(range(3), 2))}, {"int": 1}, {"int": 0}])
        if rng.random() < 0.1 and "failing selectors" not in self.themes:
            # The same under its full name, which a constraint looks at first; upstream's CEL takes either.
            attributes[f"{driver}/numa"] = {"int": rng.choice([0, 1])}
        for name in ("numa", "x.org/root", "model"):
            if rng.random() < 0.08:
                del attributes[name]
        if rng.random() < 0.05:
            attributes["x.org/root"] = {"int": 1}
        if self.has("unreadable attributes", 0.4):
            attributes["odd"] = rng.choice([{}, {"version": "1.02"}])
        return attributes

    def capacity(self, shared: bool) -> Manifest:
        rng = self.rng
        if self.has("overflow"):
            value = rng.choice(["9223372036854775807", "8Ei", "10E", "9E", "100E"])
        else:
            value = rng.choice(["2", "4", "4", "5500m", "1Ki", "0"])
        if not shared or rng.random() < 0.35:
            return {"value": value}
        policies: list[Manifest] = [
            {"default": rng.choice(["1", "2"])},
            {"default": "1", "validRange": {"min": "1", "step": "1"}},
            {"default": "2", "validRange": {"min": "1", "max": "3"}},
            {"default": "2", "validRange": {"min": "1", "step": "2", "max": "3"}} | {"default": "1"},
            {"default": "500m", "validRange": {"min": "500m", "step": "250m", "max": "3"}},
            {"default": "1", "validRange": {"min": "1", "step": "1500m"}},
            {"default": "1", "validValues": ["1", "2", "4"]},
            {"default": "2", "validValues": ["500m", "2"]},
        ]
        return {"value": value, "requestPolicy": rng.choice(policies)}

    def in_use(self) -> Manifest:
        rng = self.rng
        devices: list[Manifest] = []
        shares: list[Manifest] = []
        consumed: list[Manifest] = []
        for driver, pool, device in self.devices if "in use" in self.themes else ():
            if rng.random() > 0.25:
                continue
            key = {"driver": driver, "pool": pool, "device": device["name"]}
            shared = device.get("allowMultipleAllocations", False)
            # Rarely a device that has changed from shared to dedicated, or the other way round, since it was taken.
            if shared == (rng.random() < 0.05):
                devices.append(key)
                continue
            amounts = {name: rng.choice(["1", "1", "2", "500m"]) for name in device.get("capacity", ())}
            shares.append({**key, "shareID": f"share-{len(shares)}"})
            if amounts:
                consumed.append({**key, "consumedCapacity": amounts})
        if "in use" in self.themes and rng.random() < 0.2:
            devices.append({"driver": "a.io", "pool": "p0", "device": "gone"})
        return {"allocatedDevices": devices, "allocatedSharedDeviceIDs": shares, "aggregatedCapacity": consumed}


_FLAWS = (
    "incomplete",
    "incomplete",
    "duplicate device",
    "unknown counter",
    "duplicate counter set",
    "outdated elsewhere",
    "outdated here",
)
_EFFECTS = ("NoSchedule", "NoExecute", "NoSchedule", "None", "Unheard")


def _draw(set_: str, counter: str, value: str) -> Manifest:
    return {"counterSet": set_, "counters": {counter: {"value": value}}}


def _requirement(key: str, operator: str, *values: str) -> Manifest:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
