"""Random small instances of resource.k8s.io, the same for the same seed: every feature, about half of them allocatable.

An instance has the form of the exported cases of upstream's suite: ``features`` (gate to bool) and ``input`` with
claimsToAllocate, classes, slices, node, allocatedDevices, allocatedSharedDeviceIDs and aggregatedCapacity. An instance
is drawn from a handful of *themes*, so that a feature meets each other one often and not all of them at once.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.dra_random_pools import LABELS, NODE, Manifest, RandomPools

Instance = dict[str, Any]

FEATURES = (
    "AdminAccess",
    "ConsumableCapacity",
    "DeviceBindingAndStatus",
    "DeviceTaints",
    "FractionalCapacityRange",
    "ListTypeAttributes",
    "PartitionableDevices",
    "PrioritizedList",
)
THEMES = (
    "counters",
    "shares",
    "lists",
    "taints",
    "alternatives",
    "all",
    "match",
    "distinct",
    "admin",
    "network",
    "broken",
    "in use",
    "binding",
    "configs",
    "several claims",
    "selectors",
)
RARE = ("gates off", "limits", "overflow", "failing selectors", "unreadable attributes", "bad claims", "alpha", "large")
"""Themes of a few percent of the instances each: most end in errors, and large ones take oracle and peer long."""

AMOUNTS = ("1", "1", "2", "2", "3", "4", "500m", "1500m", "0.5", "1000m", "2000", "2048", "1Ki", "0.5Ki", "0")


def instance(rng: Random) -> Instance:
    themes = set(rng.sample(THEMES, rng.choice([1, 2, 2, 3, 3, 4, 5])))
    themes |= {rare for rare in RARE if rng.random() < 0.03}
    return drawn(rng, themes)


def drawn(rng: Random, themes: set[str]) -> Instance:
    """An instance of certain themes."""
    return _Drawing(rng, themes).instance()


class _Drawing(RandomPools):
    """One instance being drawn."""

    def instance(self) -> Instance:
        for pool in range(self.rng.choice([1, 1, 2, 2, 3])):
            self.add_pool(pool)
        claims = [
            self.claim(number) for number in range(self.rng.choice([2, 2, 3]) if self.has("several claims") else 1)
        ]
        off = set(self.rng.sample(FEATURES, self.rng.choice([1, 1, 2]))) if self.has("gates off") else set()
        self.rng.shuffle(self.slices)
        return {
            "features": {name: name not in off for name in FEATURES},
            "input": {
                "claimsToAllocate": claims,
                "classes": self.classes(),
                "slices": self.slices,
                "node": {"metadata": {"name": NODE, "labels": dict(LABELS)}},
                **self.in_use(),
            },
        }

    def classes(self) -> list[Manifest]:
        config = [{"opaque": {"driver": "a.io", "parameters": {"class": True}}}]
        classes: list[Manifest] = [
            {"metadata": {"name": "any"}, "spec": {}},
            {"metadata": {"name": "a"}, "spec": {"selectors": [_cel('device.driver == "a.io"')]}},
            {
                "metadata": {"name": "ok"},
                "spec": {"selectors": [_cel("device.attributes[device.driver].?ok.orValue(false)")]},
            },
        ]
        if "configs" in self.themes:
            classes = [{**one, "spec": {**one["spec"], "config": config}} for one in classes]
        return classes

    def claim(self, number: int) -> Manifest:
        rng = self.rng
        requests = [self.request(f"r{index}") for index in range(rng.choice([1, 1, 1, 2, 2, 3]) + self.has("large"))]
        names = [name for request in requests for name in _names(request)]
        spec: Manifest = {"requests": requests}
        constraints: list[Manifest] = [{"matchAttribute": name} for name in self.related("match")]
        constraints += [{"distinctAttribute": name} for name in self.related("distinct")]
        for constraint in constraints:
            if rng.random() < 0.4:
                constraint["requests"] = rng.sample(names, rng.randint(1, len(names)))
        if constraints:
            spec["constraints"] = constraints
        if "configs" in self.themes:
            spec["config"] = [
                {"opaque": {"driver": "b.io", "parameters": {"n": index}}, "requests": rng.sample(names, chosen)}
                for index, chosen in enumerate(rng.choices(range(len(names) + 1), k=2))
            ]
            spec["config"] = [one if one["requests"] else {"opaque": one["opaque"]} for one in spec["config"]]
        if self.has("bad claims"):
            self.spoil(spec)
        name = f"c{rng.choice([0, number])}" if rng.random() < 0.1 else f"c{number}"
        meta = {"name": name, "namespace": "default", "uid": f"u{number}"}
        return {"metadata": meta, "spec": {"devices": spec}}

    def spoil(self, spec: Manifest) -> None:
        request = self.rng.choice(spec["requests"])
        one = request["exactly"] if "exactly" in request else request["firstAvailable"][0]
        kind = self.rng.randrange(8)
        if kind == 0:
            one["deviceClassName"] = "none"
        elif kind == 1:
            one["deviceClassName"] = ""
        elif kind == 2:
            one["allocationMode"] = "Some"
        elif kind == 3:
            one["selectors"] = [{}]
        elif kind == 4:
            spec["constraints"] = [{}]
        elif kind == 5:
            one["selectors"] = [_cel("device.nothing ==")]
        elif kind == 6:
            one["derivedAttributes"] = [{"name": "a.io/derived", "expression": "1"}]
        else:
            one["count"] = self.rng.choice([33, 2**62, 2**63 - 1])

    def related(self, theme: str) -> list[str]:
        if not self.has(theme, 0.8):
            return []
        drivers = sorted({driver for driver, _, _ in self.devices})
        names = ["x.org/root", "x.org/root"]
        names += [f"{driver}/{name}" for driver in drivers for name in ("numa", "model", "serial", "firmware", "ok")]
        return [self.rng.choice(names) for _ in range(self.rng.choice([1, 1, 2]))]

    def request(self, name: str) -> Manifest:
        if not self.has("alternatives", 0.6):
            exactly = self.exactly()
            if self.has("admin", 0.5):
                exactly["adminAccess"] = self.rng.random() < 0.9
            return {"name": name, "exactly": exactly}
        subs = [{"name": f"s{number}", **self.exactly()} for number in range(self.rng.choice([1, 2, 2, 3]))]
        return {"name": name, "firstAvailable": subs}

    def exactly(self) -> Manifest:
        rng = self.rng
        one: Manifest = {"deviceClassName": rng.choice(["any", "any", "any", "a", "ok"])}
        if self.has("all", 0.3):
            one["allocationMode"] = "All"
        else:
            count = rng.choice([1, 2, 4, 8, 16, 31]) if self.has("limits") else rng.choice([1, 1, 1, 1, 2, 2, 3])
            one |= {"allocationMode": "ExactCount", "count": count}
        if self.has("selectors", 0.6):
            one["selectors"] = [_cel(rng.choice(SELECTORS)) for _ in range(rng.choice([1, 1, 2]))]
        if self.has("failing selectors", 0.6):
            one["selectors"] = [_cel(rng.choice(FAILING))]
        if self.has("taints", 0.7):
            one["tolerations"] = [rng.choice(_TOLERATIONS) for _ in range(rng.choice([1, 1, 2]))]
        if self.has("shares", 0.6):
            one["capacity"] = {"requests": {"m": self.amount()}}
            if rng.random() < 0.1:
                one["capacity"]["requests"]["n"] = self.amount()
        return one

    def amount(self) -> str:
        if self.has("overflow", 0.7):
            odd = ["9223372036854775807", "9223372036854775806", "10E", "8Ei", "5E", "-1", "1n", "0.1u", "1e20"]
            return self.rng.choice(odd)
        return self.rng.choice(AMOUNTS)


_TOLERATIONS: tuple[Manifest, ...] = (
    {"operator": "Exists"},
    {"key": "k", "operator": "Exists"},
    {"key": "k", "operator": "Equal", "value": "v"},
    {"key": "k", "value": "w", "effect": "NoSchedule"},
    {"key": "l", "operator": "Exists", "effect": "NoExecute"},
)
SELECTORS = (
    'device.driver == "a.io"',
    'device.attributes[device.driver].?model.orValue("") == "big"',
    'device.attributes["x.org"].?root.orValue("") == "r"',
    "device.attributes[device.driver].serial < 3",
    'device.attributes[device.driver].firmware.isGreaterThan(semver("1.9.9"))',
    'has(device.capacity[device.driver].m) && device.capacity[device.driver].m.compareTo(quantity("3")) >= 0',
    "device.attributes[device.driver].serial in [0, 1, 3, 5]",
    "!device.attributes[device.driver].ok || device.attributes[device.driver].serial != 1",
    "device.allowMultipleAllocations",
    "true",
)
"""Expressions that succeed on every device that is drawn; the oracle knows what each of them means."""
FAILING = (
    'device.attributes[device.driver].model == "big"',
    "device.attributes[device.driver].numa == 0",
    'device.attributes["x.org"].root == "r"',
    'device.capacity["c.io"].m.isGreaterThan(quantity("0"))',
)
"""Expressions that fail on devices that have no such attribute."""


def _cel(expression: str) -> Manifest:
    return {"cel": {"expression": expression}}


def _names(request: Manifest) -> list[str]:
    """What constraints and configs may call the request by."""
    return [request["name"], *(f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable", ()))]
