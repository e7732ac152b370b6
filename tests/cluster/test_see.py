"""The page of the controller, `devalloc top` and `kubectl get` say the same numbers, to those who may see them.

What is right is counted here, from kubectl's JSON alone. The controllers have the rights that `devalloc install` gives
them, and no more.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from devalloc.install.manifests import InstallOptions, object_collection_path, render_manifests
from tests.support import kube_build, kube_claims, kube_crds, kube_rights
from tests.support.cli_shell import Shell, devalloc
from tests.support.controller_processes import DEVMGMT, controllers, prepare
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress
from tests.support.good_manifests import good
from tests.support.kube_api import Cluster
from tests.support.kube_claims import SLICES, Space
from tests.support.resource_manifests import counters, device, resource_quota, slice_of
from tests.support.served_page import ask
from tests.support.waiting import until

__all__ = ["devalloc"]

Object = dict[str, Any]
SPACE = "see"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
CLAIMS = f"{DEVMGMT}/namespaces/{SPACE}/deviceclaims"
KINDS = "dpool,dclaim,vmachine,resourceslices,resourceclaims,resourcequotas"
OUR_DEVICES = {"free": 8, "held": 7, "unavailable": 4, "excluded": 2}
"""Of what ``everything`` makes, once all claims are answered; as a reader of the manifests counts them."""


class Read(HTMLParser):
    """What is on the page: the numbers at its top, by name, and the rows of its tables, by id."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self._tag = ""
        self._words: list[str] = []
        self.rows: dict[str, str] = {}
        self._row = ""
        self.feed(page.decode())
        self.numbers = dict(zip(self._words[::2], map(int, self._words[1::2]), strict=True))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        if tag == "tr":
            self._row = dict(attrs).get("id") or ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("dt", "dd"):
            self._words.append(data)
            self._tag = ""
        if self._row:
            self.rows[self._row] = f"{self.rows.get(self._row, '')} {data}".lstrip()


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[Cluster]:
    """Both dialects, with all that can become of a device and a claim, the rights that are installed, and users:
    `viewer` may see the page, `reader` what is devalloc's own, `stranger` nothing."""
    kube_crds.install(cluster)
    prepare(cluster)
    space = kube_claims.make_space(cluster, SPACE)
    for body in render_manifests(InstallOptions(resource_claims=True), ["rbac"]):
        make(space, object_collection_path(body), body)
    for name in ("viewer", "reader", "stranger"):
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts"
        make(space, path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    for name, role in (("viewer", "devalloc-page"), ("reader", "devalloc-view")):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"see-{name}"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SPACE}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        }
        make(space, f"{ROLES}/clusterrolebindings", binding)
    try:
        everything(space)
        yield cluster
    finally:
        space.clear()  # what others made stays theirs


def make(space: Space, path: str, body: Object) -> None:
    answer = space.cluster.create(path, body)
    assert answer.ok or answer.status == 409, answer.message
    space.made += [f"{path}/{body['metadata']['name']}"] if answer.ok else []


def everything(space: Space) -> None:
    broken, cordoned = gpu_pool("see-c", 2, "see-2"), gpu_pool("see-d", 1, "see-2")
    broken["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}]
    cordoned["metadata"]["annotations"] = {"devalloc.io/cordoned": '{"*": "ada: new fan"}'}
    parts = gpu_pool("see-m", 0, "see-1", model="MIG")
    parts["spec"] |= {"driver": "mig.devalloc.io", "resources": [{"name": "slices", "capacity": "2"}]}
    parts["spec"]["devices"] = [
        {"name": name, "requests": {"slices": size}, "attributes": [{"name": "size", "intValue": size}]}
        for name, size in (("whole", 2), ("p0", 1), ("p1", 1))
    ]
    for node in ("see-1", "see-2", "see-3"):
        make(space, "/api/v1/nodes", {"kind": "Node", "metadata": {"name": node}})
    for pool in (gpu_pool("see-a", 2, "see-1"), gpu_pool("see-b", 3, "see-2"), broken, cordoned, parts):
        make(space, f"{DEVMGMT}/devicepools", pool)
    make(space, f"{DEVMGMT}/deviceclasses", gpu_class())
    make(space, f"{DEVMGMT}/deviceclasses", gpu_class("see-mig", driver="mig.devalloc.io"))
    make(space, f"/api/v1/namespaces/{SPACE}/resourcequotas", resource_quota("devices", SPACE, gpu="4"))
    partition = gpu_claim("part", 1, SPACE)
    partition["spec"]["claims"][0] |= {"deviceClass": "see-mig", "constraints": "device.size == 1"}
    big = gpu_claim("big", 99, SPACE)
    big["spec"]["claims"][0]["deviceClass"] = "see-mig"
    for claim in (gpu_claim("fits", 2, SPACE, priority="9"), partition, big, gpu_claim("over", 3, SPACE)):
        make(space, CLAIMS, claim)
    machine = good("VirtualMachine") | {"metadata": {"name": "see", "namespace": SPACE}}
    machine["spec"].pop("claims", None)
    make(space, f"/apis/devalloc.io/v1alpha1/namespaces/{SPACE}/virtualmachines", machine)

    # What kube-scheduler gives out: a card with partitions, of two slices
    taken = [device("whole", draws={"m": "4"}), device("q0", draws={"m": "2"}), device("q1", draws={"m": "2"})]
    make(space, SLICES, slice_of("see-p", "see-3", of=2, name="see-p-sets", sharedCounters=[counters(m="4")]))
    make(space, SLICES, slice_of("see-p", "see-3", taken, of=2, name="see-p"))
    make(space, SLICES, slice_of("see-q", "see-3", [device("half")], of=2, name="see-q"))
    foreign = slice_of("see-x", "see-3", [device("theirs")], name="see-x")
    foreign["spec"]["driver"] = "gpu.example.com"
    make(space, SLICES, foreign)
    space.claim("theirs", "see", ours=False)
    results = [{"request": "r", "driver": "devalloc.io", "pool": "see-p", "device": "q0"}]
    status = {"allocation": {"devices": {"results": results}}}
    written = space.cluster.replace(f"{space.claims}/theirs/status", {**space.get("theirs"), "status": status})
    assert written.ok, written.message
    space.claim("waits", "see", ours=False)

    # What devalloc's controller gives out, from a node that is set aside
    space.node("see-4")
    space.device_class(
        "see", 'device.driver == "devalloc.io" && device.attributes["devalloc.io"].?of.orValue("") == "see"'
    )
    space.slice("see-4", [f"s{number}" for number in range(6)], of="see")
    space.rule("see-broken", pool="see-4-card.devalloc", device="s5")
    space.claim("ours", "see", 3)
    space.claim("too-many", "see", 9)
    space.pod("user", "ours")
    space.pod("waiting", "too-many")


def token(cluster: Cluster, account: str, audience: str | None = None) -> str:
    return kube_rights.token(cluster, account, namespace=SPACE, audience=audience)


def right(items: dict[str, list[Object]]) -> Object:
    """All numbers, from what kubectl gets of each kind."""
    pools, claims = items["DevicePool"], items["DeviceClaim"]
    slices = [one["spec"] for one in items["ResourceSlice"] if one["spec"]["driver"] == "devalloc.io"]
    newest = {spec["pool"]["name"]: 0 for spec in slices}
    for spec in slices:
        newest[spec["pool"]["name"]] = max(newest[spec["pool"]["name"]], spec["pool"]["generation"])
    slices = [spec for spec in slices if spec["pool"]["generation"] == newest[spec["pool"]["name"]]]
    given = [claim.get("status", {}).get("allocation") for claim in items["ResourceClaim"]]
    theirs = [
        result
        for allocation in given
        for result in (allocation or {}).get("devices", {}).get("results", [])
        if result["driver"] == "devalloc.io"
    ]
    ours = [(entry["devicePoolName"], entry["deviceName"]) for claim in claims for entry in held(claim)]
    quotas = [
        (quota["metadata"]["namespace"], name, quota["status"]["used"].get(name), most)
        for quota in items["ResourceQuota"]
        for name, most in quota.get("status", {}).get("hard", {}).items()
        if ".deviceclass." in name
    ]
    own = [
        allocation
        for allocation in given
        if allocation is not None
        and any(result["driver"] == "devalloc.io" for result in allocation.get("devices", {}).get("results", []))
    ]
    return {
        "Nodes": len({spec["nodeName"] for spec in [*slices, *(pool["spec"] for pool in pools)] if "nodeName" in spec}),
        "Cards": len(pools) + len(newest),
        "Devices": sum(len(spec.get("devices", [])) for spec in [*slices, *(pool["spec"] for pool in pools)]),
        "In use": len(set(ours) | {(result["pool"], result["device"]) for result in theirs}),
        "Claims pending": sum(not held(claim) for claim in claims) + sum(allocation is None for allocation in given),
        "Claims allocated": sum(bool(held(claim)) for claim in claims) + len(own),
        "Machines": len(items["VirtualMachine"]),
        "available of pools": {
            pool["metadata"]["name"]: pool.get("status", {}).get("availableDevices") for pool in pools
        },
        "quotas": sorted(quotas),
    }


def held(claim: Object) -> list[Object]:
    return list(claim.get("status", {}).get("allocations", []))


def top_numbers(top: Object) -> Object:
    """The same of `devalloc top -o json`."""
    counts, cards = top["counts"], [card for node in top["nodes"] for card in node["cards"]]
    return {
        "Nodes": sum(bool(node["name"]) for node in top["nodes"]),
        "Cards": top["cards"],
        "Devices": counts["devices"],
        "In use": counts["inUse"],
        "Claims pending": top["pending"],
        "Claims allocated": top["allocated"],
        "Machines": len(top["machines"]),
        "available of pools": {
            card["name"]: card["counts"]["available"] for card in cards if card["dialect"] == "DevicePool"
        },
        "quotas": sorted((each["namespace"], each["resource"], each["used"], each["hard"]) for each in top["quotas"]),
    }


def test_page_top_and_kubectl_say_the_same(fleet: Cluster, tmp_path: Path, progress: Progress, devalloc: Shell) -> None:
    kubeconfig = fleet.kubeconfig("admin")
    program = str(kube_build.kubectl(progress))

    def kubectl() -> dict[str, list[Object]]:
        command = [program, "--kubeconfig", str(kubeconfig), "get", KINDS, "-A", "-o", "json"]
        by_kind: dict[str, list[Object]] = defaultdict(list)
        for item in json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["items"]:
            by_kind[item["kind"]].append(item)
        return by_kind

    def top(at: Path = kubeconfig) -> Object:
        return dict(devalloc("top", "-o", "json", "--kubeconfig", at).json)

    def as_account(name: str) -> Path:
        content = json.loads(kubeconfig.read_text())
        content["users"][0]["user"]["token"] = token(fleet, name)
        (tmp_path / name).write_text(json.dumps(content))
        return tmp_path / name

    shipped = ["--kubeconfig", str(kube_rights.controller_kubeconfig(fleet)), "--resource-claims"]
    # a long lease: one that a busy machine makes it lose ends the process, and nothing starts it again here
    with controllers(fleet, tmp_path, 2, "--listen", "127.0.0.1:0", *shipped, lease="60s") as processes:
        pages = [
            until(lambda one=one: re.search(r"pages at (https://\S+)", one.output()), "it listens") for one in processes
        ]
        urls = [f"{page[1]}/devalloc/" for page in pages]  # one of them leads, the other stands by
        assert ask(urls[0], "view", Authorization="Bearer nonsense")[0] == 401
        assert ask(urls[0], "view", Authorization=f"Bearer {token(fleet, 'stranger', 'devalloc')}")[0] == 403
        assert ask(urls[0], "view", Authorization=f"Bearer {token(fleet, 'viewer')}")[0] == 401, "for the API server"
        assert ask(urls[0], "view")[0] == 401
        signing_in = f"token={token(fleet, 'viewer', 'devalloc')}"
        status, headers, _ = ask(urls[0], "login", method="POST", body=signing_in)
        cookie = {"Cookie": headers["Set-Cookie"].partition(";")[0]}
        assert status == 303

        def page(url: str, query: str = "") -> Read:
            status, _, body = ask(url, f"view{query}", **cookie)
            assert status == 200, body
            return Read(body)

        def agreed(devices: dict[str, int]) -> Object:
            """Once our devices are as they are to be, kubectl, top, and both controllers say the same of all."""
            seen: dict[str, Object] = {}

            def agree() -> bool:
                counted, by_kubectl = top(), right(kubectl())
                ours = [card for node in counted["nodes"] for card in node["cards"] if card["name"].startswith("see-")]
                states = Counter(device["state"] for card in ours for device in card["devices"])
                numbers = {name: value for name, value in by_kubectl.items() if isinstance(value, int)}
                numbers |= {name: counted["counts"][name.lower()] for name in ("Available", "Unavailable", "Excluded")}
                shown = [page(url).numbers for url in urls]
                seen.update(states=states, kubectl=by_kubectl, top=top_numbers(counted), pages=shown, counted=counted)
                is_one = states == devices and top_numbers(counted) == by_kubectl and shown == [numbers, numbers]
                return bool(counted["settled"]) and is_one

            until(agree, "all say the same", context=lambda: {name: seen[name] for name in seen if name != "counted"})
            return seen["counted"]

        refused = devalloc("top", "--kubeconfig", as_account("stranger"))
        assert (refused.code, "cannot list" in refused.err) == (1, True), refused.err
        counted = agreed(OUR_DEVICES)
        assert counted["notes"] == []
        opened = [f"node:see-{number}" for number in (1, 2, 3, 4)]
        opened += ["card:see-a", "card:slices:see-p", "card:slices:see-4-card.devalloc"]
        for url in urls:
            until(
                lambda url=url: "NotEnoughDevices" in page(url).rows[f"resourceclaim:{SPACE}/too-many"],
                "the page shows the reason",
            )
            rows = page(url, f"?{'&'.join(f'open={row}' for row in opened)}").rows
            assert "QuotaExceeded" in rows[f"claim:{SPACE}/over"]
            assert "NotEnoughDevices" in rows[f"claim:{SPACE}/big"]
            assert "kube-scheduler" in rows[f"resourceclaim:{SPACE}/waits"]
            assert "for pod user" in rows[f"resourceclaim:{SPACE}/ours"]
            assert f"resourceclaim {SPACE}/theirs" in rows["device:slices:see-p/q0"]
            assert "excluded" in rows["device:slices:see-p/whole"]
            assert "2 of 4 m left" in rows["card:slices:see-p"]
            assert "being published" in rows["card:slices:see-q"]
            assert "taint example.com/broken:NoSchedule" in rows["device:slices:see-4-card.devalloc/s5"]
            assert "set aside" in rows["card:slices:see-4-card.devalloc"]
            assert "1 card in DevicePools" not in rows["node:see-3"]
            assert "ResourceSlices" in rows["node:see-3"]
            assert "ada: new fan" in rows["card:see-d"]
            assert "card:slices:see-x" not in rows, "devices of other drivers are theirs"
            assert rows[f"quota:{SPACE}/devices/gpu.deviceclass.devmgmtproto.k8s.io/devices"].split()[-2:] == [
                "2",
                "4",
            ]
        assert [note.split(" is not")[0] for note in top(as_account("reader"))["notes"]] == [
            "The list of ResourceQuotas",
            "Which Nodes are cordoned or not ready",
            *(f"The list of {kind}s" for kind in ("ResourceSlice", "ResourceClaim", "DeviceTaintRule")),
        ]
        assert fleet.delete(f"{CLAIMS}/fits").ok
        agreed({**OUR_DEVICES, "free": OUR_DEVICES["free"] - 1, "held": OUR_DEVICES["held"] + 1})  # `over` has three
