"""What is installed gives each part what it needs, and refuses it all else (T30).

The table is everything that an account may do, asked of the API server for every resource it serves and every verb.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api import meta
from devalloc.api.kinds import API_KINDS
from devalloc.api.serving import node_lease, silence
from devalloc.api.views import ClaimView
from devalloc.controller import fencing
from devalloc.controller.reconcile import fenced
from devalloc.install.manifests import InstallOptions, object_collection_path, render_manifests
from devalloc.inventory.pools import node_scoped_name
from devalloc.machines.permits import leadership
from devalloc.machines.unserved_machines import CONFIRM_SECONDS, UnservedMachines
from devalloc.scaling.permits.endpoint import NAME as PERMITS_PLACE
from devalloc.store import Change
from devalloc.store.errors import Forbidden, Key, StoreError
from devalloc.store.kubernetes import NAMESPACE, Client, KubernetesStore, transaction
from devalloc.store.kubernetes.node_leases import NodeLeases
from devalloc.usage.accounting.records import record_name
from devalloc_machines.vms import objects
from devalloc_machines.vms.situation import take_object
from devalloc_machines.vms.status import write_status
from devalloc_node.claims import finalizers
from devalloc_node.errors import Failed
from devalloc_node.kube.node_lease import NodeLease
from devalloc_node.model.grant import ClaimRef
from tests.support import kube_build, kube_crds, kube_rights
from tests.support.claim_judge import why_not
from tests.support.controller_processes import Process
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.go_build import Progress, Unavailable
from tests.support.good_manifests import good
from tests.support.host_pools import host
from tests.support.host_pools import machine as a_machine
from tests.support.kube_api import NODES, ApiAnswer, Cluster, running
from tests.support.manifest_edit import with_change
from tests.support.migration_nodes import KIND as MIGRATION
from tests.support.migration_nodes import ScriptedNodes, migration
from tests.support.waiting import until

FENCING = Path(__file__).parents[2] / "deploy" / "fencing"
CONTROLLER_USER = "devalloc-controller"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
VERBS += ("allocate", "prepare", "prioritize", "use-host-paths", "overcommit")
SYNTHETIC = {
    "rbac.authorization.k8s.io/clusterroles": ("bind", "escalate"),
    "rbac.authorization.k8s.io/roles": ("bind", "escalate"),
    "/users": ("impersonate",),
    "/groups": ("impersonate",),
    "/serviceaccounts": ("impersonate",),
    "resource.k8s.io/resourceclaims/binding": ("update", "patch"),
    "resource.k8s.io/resourceclaims/driver": tuple(
        f"{where}:{verb}" for where in ("associated-node", "arbitrary-node") for verb in ("update", "patch")
    ),
}
"""Verbs and resources that no path is served for, and that the API server asks about."""

EVERY_ACCOUNT = {
    "authentication.k8s.io/selfsubjectreviews": "create",
    "authorization.k8s.io/selfsubjectaccessreviews": "create",
    "authorization.k8s.io/selfsubjectrulesreviews": "create",
    "certificates.k8s.io/clustertrustbundles": "get list watch",
}
"""What Kubernetes gives every service account."""
READ = "get list watch"
CONTROLLER = {
    **EVERY_ACCOUNT,
    "devmgmtproto.k8s.io/deviceclaims": f"{READ} update allocate",
    "devmgmtproto.k8s.io/deviceclaims/status": "update",
    "devmgmtproto.k8s.io/deviceclasses": READ,
    "devmgmtproto.k8s.io/devicepools": READ,
    "devmgmtproto.k8s.io/devicepools/status": "update",
    "devmgmtproto.k8s.io/deviceclasses/status": "update",
    "devalloc.io/virtualmachines": f"{READ} create update delete allocate use-host-paths overcommit",
    "devalloc.io/virtualmachines/status": "update",
    "devalloc.io/virtualmachinemigrations": f"{READ} create delete",
    "devalloc.io/virtualmachinemigrations/status": "update",
    "devalloc.io/virtualmachinereplicasets": READ,
    "devalloc.io/virtualmachinereplicasets/status": "update",
    "devalloc.io/vfconfigs": READ,
    "devalloc.io/vfioconfigs": READ,
    "devalloc.io/vgpuconfigs": READ,
    "/namespaces": READ,
    "/nodes": READ,
    "/resourcequotas": READ,
    "/resourcequotas/status": "update",
    "events.k8s.io/events": "create update",
    "resource.k8s.io/resourceslices": "list watch",
    "resource.k8s.io/resourceclaims": "list watch",
    "resource.k8s.io/devicetaintrules": "list watch",
    "authentication.k8s.io/tokenreviews": "create",
    "authorization.k8s.io/subjectaccessreviews": "create",
}
OF_ITS_NAMESPACE = {
    "coordination.k8s.io/leases": "create list",
    "/configmaps": "get list create update delete",
}
NODE = {**EVERY_ACCOUNT, "/nodes": "get"}
SLICES = {
    "resource.k8s.io/resourceclaims": "get list",
    "resource.k8s.io/resourceclaims/status": "patch",
    "resource.k8s.io/resourceslices": "list watch create update delete",
}
POOLS = {
    "devmgmtproto.k8s.io/devicepools": f"{READ} create update delete",
    "devmgmtproto.k8s.io/deviceclasses": READ,
    "devmgmtproto.k8s.io/deviceclaims": f"{READ} update prepare",
    "devmgmtproto.k8s.io/deviceclaims/status": "update",
    "devalloc.io/virtualmachines": f"{READ} update prepare",
    "devalloc.io/virtualmachines/status": "update",
    "devalloc.io/virtualmachinemigrations": READ,
    "devalloc.io/virtualmachinemigrations/status": "update",
    "coordination.k8s.io/leases": "get create update",
}
"""By ``group/resource``: the verbs that are allowed, of objects of any name."""


@pytest.fixture(scope="module")
def ruled(progress: Progress, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own with all that is installed but what runs, and two nodes."""
    try:
        with running(kube_build.binaries(progress), tmp_path_factory.mktemp("kubernetes")) as cluster:
            kube_crds.install(cluster)
            kube_rights.install(cluster, "both", permits=True)
            for body in render_manifests(InstallOptions(resource_claims=True), ["policies"]):
                cluster.create(object_collection_path(body), body)
            for name in NODES:
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                assert cluster.create("/api/v1/nodes", node).ok
            for body in (gpu_class(), gpu_pool("of-a", 2, "node-a")):
                assert cluster.create(place(body), body).ok
            policies_count(cluster)
            yield cluster
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes API server: {reason}")


def policies_count(cluster: Cluster) -> None:
    """Wait: policies take effect a moment after they are created."""
    node = as_node(cluster, "node-b")
    for body in of_node_a():
        refused(lambda body=body: node.create(place(body), body, dry_run=True))  # type: ignore[misc]
    for body in (gpu_claim("probe"), good("VirtualMachine") | {"metadata": {"name": "probe", "namespace": "default"}}):
        stored = cluster.create(place(body), body)
        assert stored.ok, stored.message
        path = f"{place(body)}/probe"
        labelled = with_change(stored.content, "metadata.labels", {"a": "b"})
        refused(lambda path=path, body=labelled: node.replace(path, body, dry_run=True))  # type: ignore[misc]
        assert cluster.delete(path).ok


def test_a_nodes_token_writes_no_slices_of_other_drivers(ruled: Cluster) -> None:
    (ours, _), node = of_node_a(), as_node(ruled, "node-a")
    theirs = {**ours, "spec": {**ours["spec"], "driver": "gpu.example.com"}, "metadata": {"name": "of-another-driver"}}
    path = place(ours)
    until(lambda: "its driver devalloc.io only" in node.create(path, theirs, dry_run=True).message, "policies count")
    assert node.create(path, ours, dry_run=True).ok
    assert ruled.create(path, theirs).ok
    try:
        assert "its driver devalloc.io only" in node.delete(f"{path}/of-another-driver").message
    finally:
        assert ruled.delete(f"{path}/of-another-driver").ok


def refused(ask: Callable[[], ApiAnswer]) -> None:
    """Wait until it is, by a policy of node identity."""
    until(lambda: "the token of node node-b must not write" in ask().message, "policies count")


def of_node_a() -> list[dict[str, Any]]:
    """What node-a publishes."""
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "devalloc.io", "nodeName": "node-a", "pool": pool, "devices": [{"name": "d"}]}
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "of-a"}, "spec": spec}
    return [slices, gpu_pool("node-a-0000-02-00", 2, "node-a")]


def place(body: dict[str, Any]) -> str:
    """Where objects of its kind are created."""
    if body["kind"] == "ResourceSlice":
        return "/apis/resource.k8s.io/v1/resourceslices"
    return kube_crds.path_of(API_KINDS[body["kind"]], body["metadata"].get("namespace"))


def as_node(cluster: Cluster, name: str) -> Cluster:
    """The API as the plugin of a node sees it."""
    return as_user(cluster, kube_rights.kubeconfig(cluster, name))


def as_user(cluster: Cluster, kubeconfig: Path) -> Cluster:
    return replace(cluster, token=json.loads(kubeconfig.read_text())["users"][0]["user"]["token"])


# -- the table ---------------------------------------------------------------------------------------------------------


def resources(client: Client) -> list[str]:
    """Every resource that is served, as ``group/resource``, with subresources, and those that only rights name."""
    groups = [group["preferredVersion"]["groupVersion"] for group in client.get("/apis")["groups"]]
    names = {f"/{kind['name']}" for kind in client.get("/api/v1")["resources"]}
    for version in groups:
        group = version.partition("/")[0]
        names |= {f"{group}/{kind['name']}" for kind in client.get(f"/apis/{version}")["resources"]}
    return sorted(names | SYNTHETIC.keys())


def allowed(client: Client, name: str) -> dict[str, str]:
    """All that an account may do, in the form of the table."""
    by_resource = {}
    for resource in resources(client):
        verbs = dict.fromkeys([*VERBS, *SYNTHETIC.get(resource, ())])
        if may := [verb for verb in verbs if is_allowed(client, name, resource, verb)]:
            by_resource[resource] = " ".join(may)
    return by_resource


def is_allowed(
    client: Client, name: str, resource: str, verb: str, named: str = "", namespace: str = "devalloc-system"
) -> bool:
    """Whether a service account may do that to an object of that name; without one to objects of any name."""
    group, _, rest = resource.partition("/")
    kind, _, subresource = rest.partition("/")
    access = {"group": group, "resource": kind, "subresource": subresource, "verb": verb, "namespace": namespace}
    spec = {
        "user": f"system:serviceaccount:devalloc-system:{name}",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:devalloc-system", "system:authenticated"],
        "resourceAttributes": access | ({"name": named} if named else {}),
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = client.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def as_table(table: dict[str, str]) -> dict[str, set[str]]:
    return {resource: set(verbs.split()) for resource, verbs in table.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("devalloc-controller", CONTROLLER | OF_ITS_NAMESPACE),
        ("devalloc-node", NODE | SLICES | POOLS),
    ],
)
def test_this_is_all_that_it_may_do(ruled: Cluster, name: str, expected: dict[str, str]) -> None:
    """In the namespace where it runs; elsewhere the controller may not do what is of its own namespace."""
    client = Client.connect(ruled.kubeconfig("admin"))
    assert as_table(allowed(client, name)) == as_table(expected)
    for resource, verbs in OF_ITS_NAMESPACE.items():
        for verb in verbs.split():
            assert not is_allowed(client, name, resource, verb, namespace="default")


def test_what_is_allowed_by_name_is_allowed_by_that_name_only(ruled: Cluster) -> None:
    client = Client.connect(ruled.kubeconfig("admin"))

    def may(name: str, verb: str, resource: str, named: str) -> bool:
        return is_allowed(client, name, resource, verb, named)

    for verb in ("get", "update"):
        assert may("devalloc-controller", verb, "coordination.k8s.io/leases", "devalloc-controller")
        assert not may("devalloc-controller", verb, "coordination.k8s.io/leases", "other")
    assert may("devalloc-node", "get", "/configmaps", "devalloc-permits")
    assert not may("devalloc-node", "get", "/configmaps", "devalloc-permits-usage")
    assert may("devalloc-node", "get", "/namespaces", "kube-system")
    assert not may("devalloc-node", "get", "/namespaces", "default")
    assert may("devalloc-node", "associated-node:patch", "resource.k8s.io/resourceclaims/driver", "devalloc.io")
    assert not may("devalloc-node", "associated-node:patch", "resource.k8s.io/resourceclaims/driver", "gpu.nvidia.com")
    assert not may("devalloc-node", "arbitrary-node:patch", "resource.k8s.io/resourceclaims/driver", "devalloc.io")


def test_the_controller_writes_no_configmaps_but_its_own(ruled: Cluster) -> None:
    """Of those that others have in its namespace, such as the authority of all its pods."""
    path, user = f"/api/v1/namespaces/{kube_rights.NAMESPACE}/configmaps", kube_rights.CONTROLLER
    controller = replace(ruled, token=kube_rights.token(ruled, user))
    others = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "x"}}
    assert ruled.create(path, others).status in (201, 409)
    words = "writes only its own ConfigMaps, not kube-root-ca.crt"
    until(lambda: words in controller.create(path, others, dry_run=True).message, "the policy counts")
    stored = ruled.get(f"{path}/kube-root-ca.crt").content
    for answer in (
        controller.replace(f"{path}/kube-root-ca.crt", {**stored, "data": {}}, dry_run=True),
        controller.delete(f"{path}/kube-root-ca.crt"),
    ):
        assert answer.status == 403
        assert words in answer.message
    for name in (
        transaction.new_record_name(),
        PERMITS_PLACE,
        f"{leadership.LEASE_NAME}-usage",
        record_name("2026-11"),
    ):
        own = {"kind": "ConfigMap", "metadata": {"name": name}}
        made = controller.create(path, own)
        assert made.ok, made.message
        assert controller.replace(f"{path}/{name}", {**made.content, "data": {"a": "b"}}).ok
        assert controller.delete(f"{path}/{name}").ok


# -- what each part does, it may do ------------------------------------------------------------------------------------


def store_of(kubeconfig: Path) -> KubernetesStore:
    return KubernetesStore(Client.connect(kubeconfig))


@pytest.fixture
def claim(ruled: Cluster) -> Iterator[dict[str, Any]]:
    """A claim that the controller has allocated on node-a, with its own token."""
    body = gpu_claim("held")
    assert ruled.create(place(body), body).ok
    with closing(store_of(kube_rights.controller_kubeconfig(ruled))) as store:
        pending = store.get("DeviceClaim", "default", "held")
        annotations = {meta.ALLOCATED_NODE: "node-a"}
        status = {"allocations": [{"devicePoolName": "of-a", "deviceName": "d0"}]}
        version = pending["metadata"]["resourceVersion"]
        store.commit([Change(Key.of(pending), version, status, annotations)])
        yield store.get("DeviceClaim", "default", "held")
    path = f"{place(body)}/held"
    left = ruled.get(path).content
    left["metadata"].pop("finalizers", None)
    assert ruled.replace(path, left).ok
    assert ruled.delete(path).ok


@pytest.fixture
def machine(ruled: Cluster) -> Iterator[dict[str, Any]]:
    """A machine that is to run on node-a."""
    body = good("VirtualMachine") | {"metadata": {"name": "vm", "namespace": "default"}}
    body["spec"]["nodeName"] = "node-a"
    stored = ruled.create(place(body), body)
    assert stored.ok, stored.message
    yield stored.content
    path = f"{place(body)}/vm"
    left = ruled.get(path).content
    left["metadata"].pop("finalizers", None)
    assert ruled.replace(path, left).ok
    assert ruled.delete(path).ok


def ref_of(claim: dict[str, Any]) -> ClaimRef:
    return ClaimRef("default", claim["metadata"]["name"], claim["metadata"]["uid"])


def test_the_controller_answers_claims_and_says_why_not(ruled: Cluster, tmp_path: Path) -> None:
    """The process as it is installed, but for its address."""
    own = replace(ruled, tokens={**ruled.tokens, CONTROLLER_USER: kube_rights.token(ruled, "devalloc-controller")})
    process = Process(own, tmp_path, "controller", "60s")
    process.user = CONTROLLER_USER
    members = [gpu_claim(name, group="pair") for name in ("one", "two")]
    bodies = [gpu_pool("big", 3, "node-b"), *members, gpu_claim("greedy", 9)]
    for body in bodies:
        stored = ruled.create(place(body), body)
        assert stored.ok, stored.message
    try:
        process.start()

        def says(name: str) -> dict[str, Any]:
            return dict(ruled.get(f"{place(members[0])}/{name}").content)

        until(lambda: all("allocations" in says(name).get("status", {}) for name in ("one", "two")), "a group")
        until(lambda: why_not(says("greedy")) is not None, "a reason")
        events = "/apis/events.k8s.io/v1/namespaces/default/events"
        until(lambda: names_of(ruled, events) >= {"one", "two", "greedy"}, "Events")
        pool = f"{place(bodies[0])}/big"
        until(lambda: ruled.get(pool).content.get("status", {}).get("availableDevices") is not None, "what is left")
        assert process.end() == 0
        assert "forbidden" not in process.output().lower(), process.output()
    finally:
        process.close()
        for body in bodies:
            ruled.delete(f"{place(body)}/{body['metadata']['name']}")


def names_of(cluster: Cluster, events: str) -> set[str]:
    """What Events are about."""
    return {item["regarding"]["name"] for item in cluster.get(events).content["items"]}


def test_a_node_keeps_its_pools_claims_and_machines(
    ruled: Cluster, claim: dict[str, Any], machine: dict[str, Any]
) -> None:
    with closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as store:
        pool = store.create(gpu_pool("node-a-0000-01-00", 1, "node-a"))
        pool = store.replace(with_change(pool, "spec.devices", [{"name": "other"}]))
        store.delete("DevicePool", None, "node-a-0000-01-00")

        ref = ref_of(claim)
        finalizers.add_finalizer(store, "node-a", ref)
        finalizers.set_users(store, ref, ["vm"])
        ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": ""}
        finalizers.set_device_statuses(store, ref, {("of-a", "d0"): [ready]})
        assert ClaimView(store.get("DeviceClaim", "default", "held")).is_held
        finalizers.remove_finalizer(store, "node-a", ref)
        assert not ClaimView(store.get("DeviceClaim", "default", "held")).is_held

        held = take_object(store, machine, "node-a")
        assert held is not None
        write_status(store, held, {"phase": "Running", "reason": "", "message": ""})
        assert store.get("VirtualMachine", "default", "vm")["status"]["phase"] == "Running"
        objects.release_object(store, held, "node-a")
        assert objects.holder_of(store.get("VirtualMachine", "default", "vm")) is None


def test_the_controller_says_on_machines_of_a_silent_node_that_they_may_not_run(
    ruled: Cluster, machine: dict[str, Any]
) -> None:
    """And the node, when it is back, what is true."""
    path, seconds = f"{place(machine)}/vm", [1000.0]
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    runs = {"type": "Ready", "status": "True", "reason": "MachineRunning", "message": "it runs"}

    def shown() -> tuple[str, str, str]:
        status = ruled.get(path).content["status"]
        (ready,) = [one for one in status["conditions"] if one["type"] == "Ready"]
        return status["phase"], ready["status"], ready["reason"]

    assert ruled.create(leases, node_lease("node-a", NAMESPACE, "a", datetime.now(UTC) - timedelta(hours=1))).ok
    kubeconfig = kube_rights.controller_kubeconfig(ruled)
    try:
        with closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as node:
            held = take_object(node, machine, "node-a")
            assert held is not None
            write_status(node, held, {"phase": "Running", "reason": "", "message": ""}, ready=runs)
            assert shown() == ("Running", "True", "MachineRunning")
            with closing(store_of(kubeconfig)) as store:
                of_nodes = NodeLeases(Client.connect(kubeconfig), NAMESPACE, 0.0).of_nodes
                unserved = UnservedMachines(store, of_nodes, clock=lambda: seconds[0])
                for _ in range(3):
                    unserved.look()
                    seconds[0] += CONFIRM_SECONDS
                    store.refresh()
            assert shown() == ("Unknown", "Unknown", "NodeNotServed")
            write_status(node, held, {"phase": "Running", "reason": "", "message": ""}, ready=runs)
            assert shown() == ("Running", "True", "MachineRunning")
            objects.release_object(node, held, "node-a")
    finally:
        assert ruled.delete(f"{leases}/devalloc-node.node-a").ok


def test_the_controller_and_two_nodes_migrate_a_machine(ruled: Cluster, tmp_path: Path) -> None:
    """The process as it is installed, and what the plugins of both nodes write, each with its own token."""
    own = replace(ruled, tokens={**ruled.tokens, CONTROLLER_USER: kube_rights.token(ruled, "devalloc-controller")})
    process = Process(own, tmp_path, "controller", "60s")
    process.user = CONTROLLER_USER
    bodies = [host("node-a"), host("node-b"), machine_without_node("mover"), migration("moves", "mover")]
    try:
        process.start()
        with (
            closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as a,
            closing(store_of(kube_rights.kubeconfig(ruled, "node-b"))) as b,
        ):
            for body in bodies[:3]:
                stored = ruled.create(place(body), body)
                assert stored.ok, stored.message

            def of(body: dict[str, Any]) -> dict[str, Any]:
                content = ruled.get(f"{place(body)}/{body['metadata']['name']}").content
                return dict(content.get("status") or {})

            until(lambda: of(bodies[2]).get("nodeName"), "it is placed")
            source = of(bodies[2])["nodeName"]
            stores = {"node-a": a, "node-b": b}
            target = next(node for node in stores if node != source)
            ScriptedNodes(stores[source], "mover").take(source)
            assert ruled.create(place(bodies[3]), bodies[3]).ok
            until(lambda: of(bodies[3]).get("phase") == "Scheduled", "a target is reserved")
            assert of(bodies[2])["migrationState"]["targetNode"] == of(bodies[3])["targetNode"] == target
            leaves, comes = (ScriptedNodes(stores[node], "mover", "moves") for node in (source, target))
            leaves.offer()
            comes.receive()
            leaves.send()
            leaves.hand_over()
            comes.follow()
            assert (of(bodies[2])["nodeName"], of(bodies[3])["phase"]) == (target, "Succeeded")
        assert process.end() == 0
        assert "forbidden" not in process.output().lower(), process.output()
    finally:
        process.close()
        for body in reversed(bodies):
            path = f"{place(body)}/{body['metadata']['name']}"
            left = ruled.get(path).content
            if left.get("metadata", {}).pop("finalizers", None):
                ruled.replace(path, left)
            ruled.delete(path)


def machine_without_node(name: str) -> dict[str, Any]:
    body = a_machine(name)
    body["spec"]["start"] = {"kernel": "/srv/vms/shared/vmlinuz"}
    return body


COMING = {"name": "card", "uid": "card-uid", "allocations": [{"devicePoolName": "of-b", "deviceName": "d0"}]}
"""What a claim of the machine gets on node-b."""


@pytest.fixture
def moving(ruled: Cluster) -> Iterator[tuple[ScriptedNodes, ScriptedNodes]]:
    """A machine that is to move from node-a to node-b: what either of these writes, with its own token. The controller
    has reserved a place on node-b."""
    body = good("VirtualMachine") | {"metadata": {"name": "vm", "namespace": "default"}}
    del body["spec"]["nodeName"]
    bodies = [body, migration("move", "vm")]
    for one in bodies:
        stored = ruled.create(place(one), one)
        assert stored.ok, stored.message
    given = [{"devicePoolName": "node-b-host", "deviceName": "numa0", "allocations": []}]
    with (
        closing(store_of(kube_rights.controller_kubeconfig(ruled))) as controller,
        closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as source,
        closing(store_of(kube_rights.kubeconfig(ruled, "node-b"))) as target,
    ):
        vm = controller.get("VirtualMachine", "default", "vm")
        controller.replace_status({**vm, "status": {"phase": "Pending", "nodeName": "node-a"}})
        ScriptedNodes(source, "vm").take("node-a")
        moved = controller.get(MIGRATION, "default", "move")
        booking = {"migrationName": "move", "migrationUID": moved["metadata"]["uid"], "allocations": given}
        booking["claims"] = [COMING]
        nodes = {"sourceNode": "node-a", "targetNode": "node-b"}
        vm = controller.get("VirtualMachine", "default", "vm")
        controller.replace_status({**vm, "status": {**vm["status"], "migrationState": {**booking, **nodes}}})
        controller.replace_status({**moved, "status": {"phase": "Scheduled", **nodes}})
        yield ScriptedNodes(source, "vm"), ScriptedNodes(target, "vm")
    for one in bodies:
        path = f"{place(one)}/{one['metadata']['name']}"
        left = ruled.get(path).content
        left["metadata"].pop("finalizers", None)
        assert ruled.replace(path, left).ok
        assert ruled.delete(path).ok


def test_two_nodes_move_a_machine_each_with_its_own_token(
    ruled: Cluster, moving: tuple[ScriptedNodes, ScriptedNodes]
) -> None:
    source, target = moving
    source.offer()
    target.receive()
    source.send()
    source.hand_over()
    target.follow()
    vm = ruled.get(f"{place(good('VirtualMachine') | {'metadata': {'namespace': 'default'}})}/vm").content
    assert vm["status"]["nodeName"] == vm["metadata"]["annotations"][meta.PREPARED_ON] == "node-b"
    assert vm["status"]["allocations"][0]["devicePoolName"] == "node-b-host"
    assert vm["status"]["movedClaims"] == [COMING]
    assert "migrationState" not in vm["status"]
    node_b, path = as_node(ruled, "node-b"), f"{place(vm)}/vm/status"
    says = node_b.replace(path, with_change(vm, "status.phase", "Stopping"))
    assert says.ok, says.message
    more = [COMING, COMING | {"name": "other"}]
    other = [COMING | {"allocations": [{"devicePoolName": "of-b", "deviceName": "d1"}]}]
    for claims in (more, other, []):
        answer = node_b.replace(path, with_change(says.content, "status.movedClaims", claims))
        assert answer.status in (403, 422), answer.message
        assert "only the controller of devalloc writes status.movedClaims" in answer.message


def test_the_target_takes_a_machine_that_was_pinned_to_it_on_its_way(
    ruled: Cluster, moving: tuple[ScriptedNodes, ScriptedNodes]
) -> None:
    """Its guest stands still until then, and the controller lets such a machine move. No one else takes it."""
    source, target = moving
    path = f"{place(good('VirtualMachine') | {'metadata': {'namespace': 'default'}})}/vm"
    pinned = ruled.replace(path, with_change(ruled.get(path).content, "spec.nodeName", "node-b"))
    assert pinned.ok, pinned.message
    early = as_node(ruled, "node-b").replace(path, marked(pinned.content, "node-b"))
    assert "must not write machines of node node-a" in early.message
    source.hand_over()
    target.follow()
    assert ruled.get(path).content["metadata"]["annotations"][meta.PREPARED_ON] == "node-b"


def test_neither_writes_what_is_the_other_ones_or_the_controllers(
    ruled: Cluster, moving: tuple[ScriptedNodes, ScriptedNodes]
) -> None:
    source, target = moving
    with pytest.raises(StoreError, match="the other node does"):
        target.offer()
    with pytest.raises(StoreError, match="the other node does"):
        source.receive()
    with pytest.raises(StoreError, match="must not write machines of node node-a"):
        target.hand_over()
    vms = place(good("VirtualMachine") | {"metadata": {"namespace": "default"}})
    vm = ruled.get(f"{vms}/vm").content
    moves = ruled.get(f"{place(migration())}/move").content
    node_a = as_node(ruled, "node-a")
    after = {name: part for name, part in vm["status"].items() if name != "migrationState"}
    other = [{"devicePoolName": "node-b-host", "deviceName": "numa1", "allocations": []}]
    booked = {**vm["status"]["migrationState"], "targetNode": "node-a"}
    arrived = {**after, "nodeName": "node-b", "allocations": vm["status"]["migrationState"]["allocations"]}
    for status, words in (
        ({**after, "nodeName": "node-c"}, "hands one over only to the node"),
        ({**after, "nodeName": "node-b"}, "with all that is reserved there"),
        ({**after, "nodeName": "node-b", "allocations": []}, "only"),
        ({**after, "nodeName": "node-b", "allocations": other}, "only"),
        ({**arrived, "movedClaims": [COMING, COMING | {"name": "more"}]}, "only"),
        ({**arrived, "movedClaims": [COMING | {"uid": "another"}]}, "only"),
        (arrived, "only"),
        ({**vm["status"], "movedClaims": [COMING]}, "writes status.movedClaims"),
        ({**vm["status"], "nodeName": "node-b"}, "hands one over only to the node"),
        ({**vm["status"], "migrationState": booked}, "writes status.migrationState"),
        ({**vm["status"], "runnerPod": "other/web-x7k2p"}, "writes status.runnerPod"),
    ):
        answer = node_a.replace(f"{vms}/vm/status", {**vm, "status": status})
        assert answer.status in (403, 422), answer.message
        assert words in answer.message
    chosen = {**moves, "status": {**moves["status"], "targetNode": "node-a"}}
    assert "writes sourceNode, targetNode" in node_a.replace(f"{place(migration())}/move/status", chosen).message
    assert node_a.delete(f"{place(migration())}/move").status == 403
    node_c = as_node(ruled, "node-b")
    others = {**moves, "status": {"phase": "Scheduled", "sourceNode": "node-a", "targetNode": "node-x"}}
    assert ruled.replace(f"{place(migration())}/move/status", others).ok
    others = ruled.get(f"{place(migration())}/move").content
    failed = {**others, "status": {**others["status"], "phase": "Failed"}}
    assert "between other nodes" in node_c.replace(f"{place(migration())}/move/status", failed).message
    ended = node_a.replace(f"{place(migration())}/move/status", failed)
    assert ended.ok, ended.message
    again = {**ended.content, "status": {**ended.content["status"], "phase": "Running"}}
    assert "stays so" in node_a.replace(f"{place(migration())}/move/status", again).message


# -- the token of another node -----------------------------------------------------------------------------------------


def test_a_stolen_token_writes_no_pools_of_another_node(ruled: Cluster) -> None:
    stolen = as_node(ruled, "node-b")
    path = f"{place(gpu_pool())}/of-a"
    before = ruled.get(path).content
    attempts = [
        stolen.create(place(gpu_pool()), gpu_pool("new-of-a", 2, "node-a")),
        stolen.create(place(gpu_pool()), gpu_pool("of-nobody", 2, None)),
        stolen.replace(path, with_change(before, "spec.devices", [{"name": "gone"}])),
        stolen.delete(path),
    ]
    assert_refused(attempts, "the token of node node-b must not write pools of no")
    assert stolen.replace(path, with_change(before, "spec.nodeName", "node-b")).status == 422
    own = stolen.create(place(gpu_pool()), gpu_pool("node-b-host", 2, "node-b"))
    assert own.ok, own.message
    moved = stolen.replace(f"{place(gpu_pool())}/node-b-host", with_change(own.content, "spec.nodeName", "node-a"))
    assert moved.status in (403, 422), moved.message
    assert ruled.get(path).content == before
    assert stolen.delete(f"{place(gpu_pool())}/node-b-host").ok


def test_a_node_writes_no_lease_but_the_one_that_shows_that_its_plugin_runs(ruled: Cluster) -> None:
    """Who could write the controller's would decide which controller leads."""
    kubeconfig = kube_rights.kubeconfig(ruled, "node-b")
    stolen, now = as_user(ruled, kubeconfig), datetime.now(UTC)
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    theirs = node_lease("node-a", NAMESPACE, "a", now)
    controllers = with_change(theirs, "metadata.name", "devalloc-controller")
    assert ruled.create(folder, theirs).ok
    assert ruled.create(folder, controllers).status in (201, 409), "another test may have left it"
    for body in (theirs, controllers):
        there = ruled.get(f"{folder}/{body['metadata']['name']}").content
        attempts = [
            stolen.replace(f"{folder}/{body['metadata']['name']}", with_change(there, "spec.holderIdentity", "b")),
            stolen.create(folder, with_change(body, "metadata.name", f"{body['metadata']['name']}-2")),
        ]
        assert_refused(attempts, "the token of node node-b writes the Lease devalloc-node.node-b only")
    stop = threading.Event()
    stop.set()
    lease = NodeLease(Client.connect(kubeconfig), "node-b", NAMESPACE)
    lease._renew()
    lease.run(stop)
    own = ruled.get(f"{folder}/devalloc-node.node-b").content
    assert silence(own, now).startswith("it ended at "), "it was written, and given away at the end"
    elsewhere = folder.replace(NAMESPACE, "default")
    assert stolen.create(elsewhere, node_lease("node-b", "default", "b", now)).status == 403
    for name in ("devalloc-controller", "devalloc-node.node-a", "devalloc-node.node-b"):
        assert ruled.delete(f"{folder}/{name}").ok


LONG = ".".join(["n-" * 31 + "n"] * 3 + ["n-" * 26 + "n"])
"""The name of a node, of 245 characters: of the names of its pools some are cut."""


def test_a_node_names_its_pools_after_itself(ruled: Cluster) -> None:
    """Else the token of one node takes the names that another one's pools are to have."""
    pools = place(gpu_pool())

    def answers(node: str, names: list[str]) -> list[ApiAnswer]:
        """To the creation of its pools by these names."""
        uid = ruled.get(f"/api/v1/nodes/{node}").content["metadata"]["uid"]
        bound = {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}
        plugin = replace(ruled, token=kube_rights.token(ruled, "devalloc-node", bound))
        return [plugin.create(pools, gpu_pool(name, 1, node), dry_run=True) for name in names]

    for name in (LONG, "node-a-0000", "node-a-mdev-b"):
        assert ruled.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}).ok
    for node in ("node-a", "node-a-0000", "node-a-mdev-b", LONG):
        ends = ("host", "0000-3b-00", "10000-e1-1f", "mdev-mtty", "mdev-0-0-033f")
        own = [node_scoped_name(node, end) for end in ends]
        assert [answer.message for answer in answers(node, own) if not answer.ok] == []
    for node, names in {
        "node-a": [
            *("node-b-host", "node-a-0000-host", "node-a-0000-0000-3b-00", "node-a", "mine", "node-ahost"),
            *("node-b-mdev-mtty", "node-a-0000-mdev-mtty", "node-a-mdev", "node-amdev-mtty", "node-a-mdev-mtty.x"),
            # These are right for node-a-mdev-b.
            *("node-a-mdev-b-host", "node-a-mdev-b-0000-3b-00", "node-a-mdev-b-mdev-mtty"),
        ],
        "node-a-mdev-b": ["node-a-mdev-b", "node-a-mdev-mtty", "node-a-host"],
        "node-a-0000": ["node-a-host", "node-a-0000-3b-00", "node-a-mdev-mtty"],
        LONG: [
            node_scoped_name(f"m{LONG[1:]}", "0000-3b-00"),
            node_scoped_name(f"m{LONG[1:]}", "mdev-mtty"),
            f"{LONG[:230]}-0000-3b-00",
            f"{LONG[:200]}-01234567-0000-3b-00",
        ],
    }.items():
        attempts = answers(node, names)
        for name, answer in zip(names, attempts, strict=True):
            assert_refused([answer], f"the token of node {node} must not write pool {name}; it may write {node}-host, ")


def test_a_claim_leaves_room_for_the_mark_of_a_new_leader(ruled: Cluster) -> None:
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    requests = [{"name": "r", "exactly": {"deviceClassName": "any"}}]
    many = {f"team-{number}": "x" for number in range(64)}
    ours = {"devalloc.io/allocator": "devalloc"}

    def claim(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
        metadata = {"name": "full", "namespace": "default", "labels": labels, "annotations": annotations}
        about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        return {**about, "spec": {"devices": {"requests": requests}}}

    large = {"a": "x" * (128 << 10)}
    for full, words in (
        (claim(many | ours, {}), "metadata.labels: must be at most 64"),
        (claim(ours, large), "metadata.annotations: must be at most 128 KiB"),
    ):
        until(lambda full=full, words=words: words in ruled.create(path, full, dry_run=True).message, words)  # type: ignore[misc]
    assert ruled.create(path, claim(ours, {"a": "x" * ((128 << 10) - 1)}), dry_run=True).ok
    other = ruled.create(path, claim({}, large))
    assert other.ok, "of claims that are not the controller's it says nothing"
    try:
        marked = with_change(other.content, "metadata.labels", ours)
        assert "at most 128 KiB" in ruled.replace(f"{path}/full", marked, dry_run=True).message
    finally:
        assert ruled.delete(f"{path}/full").ok


def test_a_resource_claims_priority_above_0_needs_a_right_in_the_whole_cluster(ruled: Cluster) -> None:
    """Also where Kubernetes makes the claim of a template, which it does with rights of its own."""
    tenant, writer = {"kind": "ServiceAccount", "name": "tenant", "namespace": "default"}, "resource-claim-controller"
    rbac, api = "/apis/rbac.authorization.k8s.io/v1", "/apis/resource.k8s.io/v1/namespaces/default"
    for body in render_manifests(InstallOptions(resource_claims=True), ["rbac"]):
        if body["metadata"]["name"] == "devalloc-prioritize-templates":
            assert ruled.create(object_collection_path(body), body).ok
    for namespace, name in (("default", "tenant"), ("kube-system", writer)):
        assert ruled.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}}).ok
    everything = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    for name, subject in (("tenant", tenant), (writer, {**tenant, "name": writer, "namespace": "kube-system"})):
        binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": everything}
        assert ruled.create(f"{rbac}/namespaces/default/rolebindings", binding).ok
    owner = replace(ruled, token=kube_rights.token(ruled, "tenant", namespace="default"))
    kubernetes = replace(ruled, token=kube_rights.token(ruled, writer, namespace="kube-system"))

    def claim(priority: str) -> dict[str, Any]:
        requests = [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]
        metadata = {"name": "urgent", "annotations": {meta.PRIORITY: priority}}
        return {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": requests}}}

    def template(priority: str) -> dict[str, Any]:
        made = claim(priority)
        spec = {"metadata": {"annotations": made["metadata"]["annotations"]}, "spec": made["spec"]}
        return {"kind": "ResourceClaimTemplate", "metadata": {"name": "urgent"}, "spec": spec}

    words = "metadata.annotations[devalloc.io/priority]: a priority above 0 is set or raised only by those who may"
    until(lambda: owner.create(f"{api}/resourceclaims", claim("0"), dry_run=True).ok, "rights")
    until(lambda: kubernetes.create(f"{api}/resourceclaims", claim("5"), dry_run=True).ok, "rights")
    for path, body in ((f"{api}/resourceclaims", claim), (f"{api}/resourceclaimtemplates", template)):
        until(lambda path=path, body=body: owner.create(path, body("1"), dry_run=True).status == 403, "policy")  # type: ignore[misc]
        for text in ("5", "+5", "007", "9" * 30, "\u0669", " 5", "high"):
            answer = owner.create(path, body(text), dry_run=True)
            assert answer.status == 403, text
            assert words in answer.message
        for text in ("0", "-5"):
            assert owner.create(path, body(text), dry_run=True).ok, text
        assert ruled.create(path, body("5"), dry_run=True).ok
    stored = ruled.create(f"{api}/resourceclaims", claim("5"))
    try:
        path = f"{api}/resourceclaims/urgent"
        for text, status in (("5", 200), ("4", 200), ("0", 200), ("6", 403)):
            noted = with_change(
                stored.content, "metadata.annotations", {meta.PRIORITY: text, "team.example.com/a": "b"}
            )
            assert owner.replace(path, noted, dry_run=True).status == status, text
    finally:
        assert ruled.delete(path).ok


def test_a_stolen_token_writes_no_slices_of_another_node(ruled: Cluster) -> None:
    stolen, own = as_node(ruled, "node-b"), as_node(ruled, "node-a")
    body, _ = of_node_a()
    stored = own.create(place(body), body)
    assert stored.ok, stored.message
    path = f"{place(body)}/of-a"
    attempts = [
        stolen.create(place(body), with_change(body, "metadata.name", "again")),
        stolen.replace(path, with_change(stored.content, "spec.devices", [{"name": "gone"}])),
        stolen.delete(path),
    ]
    assert_refused(attempts, "the token of node node-b must not write slices of node node-a")
    assert own.delete(path).ok


def test_a_stolen_token_touches_no_claim_of_another_node(ruled: Cluster, claim: dict[str, Any]) -> None:
    stolen, path = as_node(ruled, "node-b"), f"{place(claim)}/held"
    with closing(store_of(kube_rights.kubeconfig(ruled, "node-b"))) as store:
        for attempt in (
            lambda: finalizers.add_finalizer(store, "node-a", ref_of(claim)),
            lambda: finalizers.set_users(store, ref_of(claim), ["mine"]),
        ):
            with pytest.raises(Failed, match="the token of node node-b must not write claims of node node-a"):
                attempt()
    with closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as store:
        finalizers.add_finalizer(store, "node-a", ref_of(claim))
    marked = ruled.get(path).content
    attempts = [
        stolen.replace(path, with_change(marked, "metadata.finalizers", [])),
        stolen.replace(path, with_change(marked, "metadata.annotations", {meta.ALLOCATED_NODE: "node-a"})),
        stolen.replace(path, with_change(marked, "metadata.labels", {"a": "b"})),
        stolen.replace(f"{path}/status", with_change(marked, "status.podNames", ["mine"])),
    ]
    assert_refused(attempts, "the token of node node-b must not write claims of node node-a")
    assert ruled.get(path).content == marked


def test_a_node_writes_of_its_own_claim_the_mark_and_the_status_only(ruled: Cluster, claim: dict[str, Any]) -> None:
    own, path = as_node(ruled, "node-a"), f"{place(claim)}/held"
    annotations = claim["metadata"]["annotations"]
    attempts = [
        own.replace(path, with_change(claim, "metadata.labels", {"a": "b"})),
        own.replace(path, with_change(claim, "metadata.annotations", annotations | {"a": "b"})),
        own.replace(path, with_change(claim, "metadata.finalizers", ["example.com/mine"])),
    ]
    assert_refused(attempts, "of a claim a node writes its mark and the status, and nothing else")
    mark = {"finalizers": [meta.NODE_FINALIZER], "annotations": annotations | {meta.PREPARED_ON: "node-b"}}
    elsewhere = {**claim, "metadata": claim["metadata"] | mark}
    assert_refused([own.replace(path, elsewhere)], "the token of node node-a marks claims for its own node only")
    other = with_change(claim, "status.allocations", [{"devicePoolName": "of-a", "deviceName": "d1"}])
    assert_refused([own.replace(f"{path}/status", other)], "only the controller of devalloc writes status.allocations")
    assert ruled.get(path).content["metadata"]["resourceVersion"] == claim["metadata"]["resourceVersion"]


def test_a_stolen_token_touches_no_machine_of_another_node(ruled: Cluster, machine: dict[str, Any]) -> None:
    stolen, own, path = as_node(ruled, "node-b"), as_node(ruled, "node-a"), f"{place(machine)}/vm"
    attempts = [
        stolen.replace(path, with_change(machine, "metadata.finalizers", [meta.NODE_FINALIZER])),
        stolen.replace(path, with_change(machine, "spec.nodeName", "node-b")),
        stolen.replace(f"{path}/status", {**machine, "status": {"phase": "Failed"}}),
    ]
    assert_refused(attempts, "the token of node node-b must not write machines of node node-a")
    assert_refused(
        [own.replace(path, with_change(machine, "spec.nodeName", "node-b"))],
        "of a machine a node writes its mark and the status, and nothing else",
    )
    placed = {**machine, "status": {"phase": "Pending", "nodeName": "node-b"}}
    assert not own.replace(f"{path}/status", placed).ok, "a node does not choose"
    assert own.delete(path).status == 403
    assert ruled.get(path).content == machine


def test_the_controller_takes_what_a_fenced_node_holds_and_the_node_confirms_that(
    ruled: Cluster, claim: dict[str, Any], machine: dict[str, Any]
) -> None:
    """With the code and the tokens of both. Another node's token neither takes nor confirms."""
    with closing(store_of(kube_rights.kubeconfig(ruled, "node-a"))) as node:
        finalizers.add_finalizer(node, "node-a", ref_of(claim))
        assert take_object(node, {**machine, "kind": "VirtualMachine"}, "node-a") is not None
    stolen = as_node(ruled, "node-b")
    paths = [f"{place(claim)}/held", f"{place(machine)}/vm"]
    for path in paths:
        bare = with_change(ruled.get(path).content, "metadata.finalizers", [])
        assert "the token of node node-b must not write" in stolen.replace(path, bare).message
    with closing(store_of(kube_rights.controller_kubeconfig(ruled))) as controller:
        held = fenced.held_objects(controller, "node-a")
        taken = fenced.take_away(controller, held, "node-a", "by ada: no power")
        assert sorted(f"{key.kind}/{key.name}" for key in taken) == ["DeviceClaim/held", "VirtualMachine/vm"]
        for path in paths:
            assert as_controller(ruled).replace(path, marked(ruled.get(path).content, "node-a")).status in (403, 422)
    for path in paths:
        taken = ruled.get(path).content
        assert meta.NODE_FINALIZER not in (taken["metadata"].get("finalizers") or ())
        assert taken["metadata"]["annotations"][meta.FENCED_FROM] == "node-a"
        confirmed = {k: v for k, v in taken["metadata"]["annotations"].items() if k != meta.FENCED_FROM}
        assert not stolen.replace(path, with_change(taken, "metadata.annotations", confirmed)).ok
        assert not as_node(ruled, "node-a").replace(path, with_change(taken, "metadata.annotations", {})).ok
        assert as_node(ruled, "node-a").replace(path, with_change(taken, "metadata.annotations", confirmed)).ok
    assert ruled.get(paths[1]).content["status"]["reason"] == "NodeFenced"


def marked(obj: dict[str, Any], node: str) -> dict[str, Any]:
    """The object as if this node held it."""
    annotations = obj["metadata"].get("annotations", {}) | {meta.PREPARED_ON: node}
    return {**obj, "metadata": obj["metadata"] | {"finalizers": [meta.NODE_FINALIZER], "annotations": annotations}}


def as_controller(cluster: Cluster) -> Cluster:
    return as_user(cluster, kube_rights.controller_kubeconfig(cluster))


def test_the_controller_states_only_that_nodes_are_off_and_only_with_a_right_of_its_own(ruled: Cluster) -> None:
    """`deploy/fencing` is not installed by default."""
    path, taint = "/api/v1/nodes/node-b", {"key": meta.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    with closing(store_of(kube_rights.controller_kubeconfig(ruled))) as controller:
        with pytest.raises(Forbidden):
            fencing.state_fence(controller, "node-b", "by a program")
        for body in yaml.safe_load_all((FENCING / "rights.yaml").read_text()):
            made = ruled.create(object_collection_path(body), body)
            assert made.ok, made.message
        other = {"key": "example.com/mine", "effect": "NoSchedule"}

        def refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
            return as_controller(ruled).replace(path, change(ruled.get(path).content), dry_run=True).message

        def labelled(node: dict[str, Any]) -> dict[str, Any]:
            return with_change(node, "metadata.labels", {"devalloc.io/publish": "host"})

        def tainted(node: dict[str, Any]) -> dict[str, Any]:
            return with_change(node, "spec.taints", [*node["spec"].get("taints", []), other])

        for change in (labelled, tainted):
            until(lambda change=change: "only adds the taint" in refused(change), "the policy counts")  # type: ignore[misc]
        assert fencing.state_fence(controller, "node-b", "by a program")
        assert fenced.is_fenced(controller, "node-b")
        node = ruled.get(path).content
        ours = [one for one in node["spec"]["taints"] if one["key"] == meta.OUT_OF_SERVICE]
        assert [{**one, "timeAdded": ""} for one in ours] == [{**taint, "timeAdded": ""}]
        assert "only adds the taint" in refused(lambda node: with_change(node, "spec.taints", []))
        ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        assert ruled.replace(f"{path}/status", {**node, "status": ready}).ok
        assert not fenced.is_fenced(controller, "node-b"), "its kubelet reports"
        with pytest.raises(fencing.NodeAnswers):
            fencing.state_fence(controller, "node-b", "by a program")
        bare = with_change(ruled.get(path).content, "spec.taints", [])
        assert ruled.replace(path, bare).ok
        assert "the Node is Ready" in refused(lambda node: with_change(node, "spec.taints", [taint]))


def test_a_token_that_names_no_node_writes_nothing(ruled: Cluster) -> None:
    """As one has who makes it from the account, without a pod."""
    unbound = replace(ruled, token=kube_rights.token(ruled, "devalloc-node"))
    for body in of_node_a():
        assert "the token names no node" in unbound.create(place(body), body).message


def assert_refused(attempts: list[ApiAnswer], words: str) -> None:
    for number, answer in enumerate(attempts):
        assert answer.status in (403, 422), f"{number}: {answer.status} {answer.message}"
        assert words in answer.message, f"{number}: {answer.message}"
