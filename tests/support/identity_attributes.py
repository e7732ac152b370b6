"""Add identifying attributes to random fleets, and claims that select by them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.support.manifests import Manifest

IDENTITIES = ["uuid", "host", "rack", "card"]
"""unique to a device; to a node; of a few nodes; drawn for each device, and not on all of them"""


def with_identities(random: Random, documents: list[Manifest]) -> list[Manifest]:
    """The same documents, changed in place."""
    for document in documents:
        if document["kind"] == "DevicePool":
            _mark(random, document)
    for document in documents:
        if document["kind"] == "DeviceClaim" and "status" not in document:
            for detail in _details(document):
                if random.random() < 0.4:
                    detail["constraints"] = _constraint(random)
                if random.random() < 0.15:
                    detail["matchAttributes"] = [random.choice(IDENTITIES)]
            if random.random() < 0.1:
                document["spec"]["matchAttributes"] = [random.choice(IDENTITIES)]
    return documents


def _mark(random: Random, pool: Manifest) -> None:
    node = str(pool["spec"].get("nodeName"))
    for each in pool["spec"]["devices"]:
        name = str(each["name"])
        marks: dict[str, dict[str, Any]] = {
            "uuid": {"stringValue": f"{node}-{pool['metadata']['name']}-{name}"},
            "host": {"stringValue": node},
            "rack": {"stringValue": f"rack-{len(node) % 2}{node[-1] in '12'}"},
        }
        if random.random() < 0.9:
            version = random.randrange(4)
            marks["card"] = {"semVerValue": f"1.{version}.0"} if random.random() < 0.2 else {"intValue": version}
        named = {each["name"] for each in each.get("attributes", ())}
        added = [{"name": name, **value} for name, value in marks.items() if name not in named]
        each["attributes"] = [*each.get("attributes", ()), *added]


def _details(claim: Manifest) -> Iterator[Manifest]:
    for entry in claim["spec"]["claims"]:
        yield from entry.get("oneOf", [entry])


def _constraint(random: Random) -> str:
    node = random.choice(["n1", "n2", "n3"])
    device = f"{node}-p{random.randrange(3)}-{random.choice(['g0', 'g1', 'whole', 'v0', 'pf0'])}"
    return random.choice(
        [
            f"device.uuid == '{device}'",
            f"device.uuid in ['{device}', 'n1-p0-g0', 'n2-p1-g1']",
            f"device.uuid.startsWith('{node}')",
            f"device.host != '{node}' && device.card < 2",
            f"'{node}' == device.host || device.uuid == '{device}'",
            f"device.card in [{random.randrange(4)}, {random.randrange(4)}]",
            f"device.card == {random.randrange(5)}",
            "device.card >= semver('1.2.0')",
            "device.rack == 'rack-0True'",
            "device.rack == 'nowhere'",
            "'card' in device && device.uuid != ''",
        ]
    )
