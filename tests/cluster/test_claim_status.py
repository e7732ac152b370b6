"""``status.devices`` on a real API server, written with the token and the rights of a node's plugin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc_node.binding.binding import HealthState
from devalloc_node.health.watch import DeviceHealth, HealthSnapshot
from devalloc_node.kube.claim_status import ResourceClaimStatuses
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice
from tests.support import kube_build, kube_rights
from tests.support.go_build import Progress
from tests.support.kube_api import Cluster, running

DRIVER = "devalloc.io"
SPACE = "claim-status"
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{SPACE}/resourceclaims"
POOL = "node-a-0000-41-00"
VF = PreparedDevice(
    ("nic",),
    POOL,
    "0000-41-10-0",
    "vfio",
    ("0000:41:10.0",),
    attributes={"resource.kubernetes.io/pciBusID": "0000:41:10.0", "mac": "02:00:00:00:00:07"},
)
THEIRS = {"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {"z": 1, "a": {"y": [], "b": 1.0}}}
NOTHING = HealthSnapshot(0, ())


def checkup(state: str, message: str = "") -> HealthSnapshot:
    return HealthSnapshot(1, (DeviceHealth(POOL, VF.device, HealthState(state, message), 0.0),))  # type: ignore[arg-type]


def allocation(node: str) -> dict[str, Any]:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    results = [
        {"request": "nic", "driver": DRIVER, "pool": POOL, "device": VF.device},
        {"request": "other", "driver": "gpu.example.com", "pool": "p", "device": "d"},
    ]
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
    }


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Cluster:
    return furnished(cluster)


@pytest.fixture(scope="module")
def before_1_36(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server that lets all who may write a claim's status write all of it."""
    folder = tmp_path_factory.mktemp("kubernetes")
    gate = "--feature-gates=DRAResourceClaimGranularStatusAuthorization=false"
    with running(kube_build.binaries(progress), folder, gate) as server:
        yield furnished(server)


def furnished(cluster: Cluster) -> Cluster:
    """With two nodes, a namespace, and the plugin's rights as soon as they count."""
    kube_rights.install(cluster)
    for name in ("node-a", "node-b"):
        cluster.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    assert cluster.create("/api/v1/namespaces", space).ok
    access = {"group": "resource.k8s.io", "resource": "resourceclaims", "subresource": "driver", "name": DRIVER}
    spec = {"user": "system:serviceaccount:devalloc-system:devalloc-node", "resourceAttributes": access}
    access |= {"verb": "associated-node:patch", "namespace": SPACE}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    deadline = time.monotonic() + 60
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    while not cluster.create(reviews, review).content["status"]["allowed"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return cluster


def make_claim(api: Cluster, node: str) -> ClaimRef:
    """The claim ``c``, allocated on a node, with another driver's device beside ours."""
    requests = [{"name": name, "exactly": {"deviceClassName": "any"}} for name in ("nic", "other")]
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    stored = api.create(CLAIMS, body | {"spec": {"devices": {"requests": requests}}})
    assert stored.ok, stored.message
    answer = api.replace(f"{CLAIMS}/c/status", stored.content | {"status": {"allocation": allocation(node)}})
    assert answer.ok, answer.message
    admin = Client.connect(api.kubeconfig("admin"))
    admin.patch(f"{CLAIMS}/c/status", [{"op": "add", "path": "/status/devices", "value": [THEIRS]}])
    return ClaimRef(SPACE, "c", stored.content["metadata"]["uid"])


@pytest.fixture
def claim(api: Cluster) -> Iterator[Callable[[str], ClaimRef]]:
    yield partial(make_claim, api)
    api.delete(f"{CLAIMS}/c")


def plugin(api: Cluster, node: str) -> Client:
    return Client.connect(kube_rights.kubeconfig(api, node))


def devices(api: Cluster) -> list[dict[str, Any]]:
    content = api.get(f"{CLAIMS}/c").content["status"].get("devices", [])
    return [{name: value for name, value in each.items() if value is not None} for each in content]


def ours(api: Cluster) -> list[dict[str, Any]]:
    return [each for each in devices(api) if each["driver"] == DRIVER]


def conditions(entry: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in entry["conditions"]}


def version(api: Cluster) -> str:
    number: str = api.get(f"{CLAIMS}/c").content["metadata"]["resourceVersion"]
    return number


def test_status_lists_a_prepared_device_with_its_health_until_it_is_unprepared(
    api: Cluster, claim: Callable[[str], ClaimRef]
) -> None:
    ref = claim("node-a")
    statuses = ResourceClaimStatuses(plugin(api, "node-a"), DRIVER)
    statuses.update([Prepared(ref, (VF,))], NOTHING)
    (entry,) = ours(api)
    assert (entry["pool"], entry["device"]) == (POOL, VF.device)
    assert entry["data"] == {
        "binding": "vfio",
        "functions": ["0000:41:10.0"],
        "attributes": {"resource.kubernetes.io/pciBusID": "0000:41:10.0"},
    }
    assert entry["networkData"] == {"hardwareAddress": "02:00:00:00:00:07"}
    assert conditions(entry) == {"Ready": ("True", "Prepared", "vfio: 0000:41:10.0")}

    statuses.update([Prepared(ref, (VF,))], checkup("unhealthy", "it is gone"))
    (entry,) = ours(api)
    assert conditions(entry)["Healthy"] == ("False", "Unhealthy", "it is gone")

    # What a network says of it stays while it is prepared.
    (place,) = [number for number, each in enumerate(devices(api)) if each["driver"] == DRIVER]
    network = {"op": "add", "path": f"/status/devices/{place}/networkData/ips", "value": ["10.0.0.7/24"]}
    plugin(api, "node-a").patch(f"{CLAIMS}/c/status", [network])

    before = version(api)
    statuses.update([Prepared(ref, (VF,))], checkup("unhealthy", "it is gone"))
    again = ResourceClaimStatuses(plugin(api, "node-a"), DRIVER)
    again.update([Prepared(ref, (VF,))], checkup("unhealthy", "it is gone"))
    assert version(api) == before, "neither this nor another instance writes what stands there"

    time.sleep(1.1)  # times have whole seconds
    again.update([Prepared(ref, (VF,))], checkup("healthy"))
    (later,) = ours(api)
    since = [{each["type"]: each["lastTransitionTime"] for each in one["conditions"]} for one in (entry, later)]
    assert since[0]["Ready"] == since[1]["Ready"]
    assert since[0]["Healthy"] < since[1]["Healthy"]
    assert later["networkData"] == {"hardwareAddress": "02:00:00:00:00:07", "ips": ["10.0.0.7/24"]}

    again.update([], NOTHING)
    assert devices(api) == [THEIRS]


def test_vanished_claims_and_devices_cause_no_write(api: Cluster, claim: Callable[[str], ClaimRef]) -> None:
    ref = claim("node-a")
    statuses = ResourceClaimStatuses(plugin(api, "node-a"), DRIVER)
    other = replace(ref, uid="00000000-0000-4000-8000-000000000000")
    lost = replace(VF, device="0000-41-10-9")
    before = version(api)
    statuses.update([Prepared(replace(ref, name="nobody"), (VF,)), Prepared(other, (VF,))], NOTHING)
    statuses.update([Prepared(ref, (lost,))], NOTHING)
    assert version(api) == before


def refused(act: Callable[[], Any], words: str) -> None:
    """That it is refused with these words, once the policy counts."""
    deadline = time.monotonic() + 60
    while True:
        try:
            act()
            text = "accepted"
        except ApiError as error:
            text = str(error)
        if words in text:
            return
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


OWN_CHECK = ("arbitrary-node:patch", "arbitrary-node:patch", "resourceclaims/binding")
POLICY = (
    'the token of node "node-a" writes on claims',
    "writes the devices of its driver devalloc.io only",
    "writes status.devices and nothing else",
)


@pytest.mark.parametrize(("server", "words"), [("api", OWN_CHECK), ("before_1_36", POLICY)])
def test_a_nodes_token_writes_only_on_claims_of_its_node_and_only_its_drivers_devices(
    request: pytest.FixtureRequest, server: str, words: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The API server sees to it since 1.36; before, the policy that is shipped."""
    api: Cluster = request.getfixturevalue(server)
    ref = make_claim(api, "node-b")
    path = f"{CLAIMS}/c/status?dryRun=All"
    own_device = {"driver": DRIVER, "pool": POOL, "device": VF.device}
    of_the_node, of_the_driver, of_the_devices = words
    stolen, own = plugin(api, "node-a"), plugin(api, "node-b")

    def change(client: Client, field: str, value: Any) -> Callable[[], Any]:
        operation = {"op": "add", "value": value} if value is not None else {"op": "remove"}
        return lambda: client.patch(path, [operation | {"path": f"/status/{field}"}])

    try:
        refused(change(stolen, "devices/-", own_device), of_the_node)
        statuses = ResourceClaimStatuses(stolen, DRIVER)
        for _ in range(2):
            statuses.update([Prepared(ref, (VF,))], NOTHING)
        assert caplog.text.count("cannot write the health of the devices of ResourceClaim claim-status/c") == 1
        refused(change(own, "devices/0/data", {"mine": True}), of_the_driver)
        refused(change(own, "allocation", None), of_the_devices)
        refused(change(own, "reservedFor", [{"resource": "pods", "name": "p", "uid": "u"}]), of_the_devices)
        assert len(change(own, "devices/-", own_device)()["status"]["devices"]) == 2
        assert devices(api) == [THEIRS]
    finally:
        api.delete(f"{CLAIMS}/c")


def test_a_kubelets_own_credentials_are_refused_once_and_left_alone(
    api: Cluster, claim: Callable[[str], ClaimRef], caplog: pytest.LogCaptureFixture
) -> None:
    """A node whose plugin runs with them serves pods all the same."""
    ref = claim("node-a")
    now = [0.0]
    statuses = ResourceClaimStatuses(Client.connect(api.kubeconfig("system:node:node-a")), DRIVER, clock=lambda: now[0])
    for _ in range(3):
        statuses.update([Prepared(ref, (VF,))], NOTHING)
    assert caplog.text.count("cannot write the health of devices to ResourceClaims") == 1
    now[0] = 1000.0
    statuses.update([Prepared(ref, (VF,))], NOTHING)
    assert caplog.text.count("cannot write the health of devices to ResourceClaims") == 2
