"""ValidatingAdmissionPolicies about claims and machines on a real API server: who may write what, and where."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api import meta
from devalloc.api.conditions import DEFAULT_STATUS
from devalloc.api.decode import decode
from devalloc.api.kinds import API_KINDS
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.install.manifests import InstallOptions, render_manifests
from devalloc.install.manifests import object_collection_path as path_of_manifest
from devalloc.machines.replica_sets import machine_manifest
from devalloc.store import Change, Conflict, Invalid, Key
from devalloc.store.kubernetes import Client, KubernetesStore
from devalloc.store.kubernetes.resources import CORE_KINDS, OWN_KINDS
from tests.support import kube_crds, kube_rights, waiting
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.good_manifests import good
from tests.support.kube_api import ApiAnswer, Cluster
from tests.support.kube_crds import path_of
from tests.support.machine_allocator import machine_allocator
from tests.support.manifest_edit import with_change
from tests.support.migration_nodes import CERTIFICATE, migration

FOLDER = Path(__file__).parents[2] / "deploy" / "base"
MANIFESTS = (FOLDER / "policies-objects.yaml", FOLDER / "policies-names.yaml")
SHIPPED = render_manifests(InstallOptions(publish="pools"), ["rbac"])
SECONDS = 120.0
SPACE, WATCHERS, COUNTED = "policies", "policies-watchers", "policies-counted"
CLAIMS, MACHINES = path_of(API_KINDS["DeviceClaim"], SPACE), path_of(API_KINDS["VirtualMachine"], SPACE)
ROLES: Mapping[str, tuple[str, ...]] = {
    # who: the cluster roles that are shipped for that
    "person": ("devalloc-view", "devalloc-edit", "devalloc-machines"),
    "trusted": (
        "devalloc-view",
        "devalloc-edit",
        "devalloc-machines",
        "devalloc-prioritize",
        "devalloc-host-paths",
        "devalloc-overcommit",
    ),
    "controller": ("devalloc-controller",),
    "plugin": ("devalloc-node-pools",),
}
STATUSES = {
    "resources": ["deviceclaims/status", "virtualmachines/status", "virtualmachinemigrations/status"],
    "verbs": ["update"],
}
"""People have these here, too, so that it is the policies that keep them from it."""
OWNER = "owner"
"""Who has everything in one namespace, and nothing else: a RoleBinding to cluster-admin."""
USERS = (*ROLES, OWNER)
As = Callable[[str], Cluster]


def ensure(cluster: Cluster, body: dict[str, Any]) -> bool:
    """Have it there; whether it was not before."""
    answer = cluster.create(path_of_manifest(body), body)
    assert answer.ok or answer.status == 409, f"{body['kind']}: {answer.message}"
    return answer.ok


def account(cluster: Cluster, name: str) -> str:
    """A token of a service account with its rights."""
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": SPACE}
    role = {"kind": "ClusterRole", "name": f"policies-{name}", "apiGroup": "rbac.authorization.k8s.io"}
    named = {"name": f"policies-{name}"}
    ensure(cluster, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": SPACE}})
    if name == OWNER:
        ensure(
            cluster,
            {
                **rbac,
                "kind": "RoleBinding",
                "metadata": {**named, "namespace": SPACE},
                "subjects": [subject],
                "roleRef": {**role, "name": "cluster-admin"},
            },
        )
        return kube_rights.token(cluster, name, namespace=SPACE)
    shipped = {body["metadata"]["name"]: body for body in SHIPPED if body["kind"] == "ClusterRole"}
    rules = [rule for role in ROLES[name] for rule in shipped[role]["rules"]]
    rules += [{"apiGroups": ["devmgmtproto.k8s.io", "devalloc.io"], **STATUSES}] if name == "person" else []
    ensure(cluster, {**rbac, "kind": "ClusterRole", "metadata": named, "rules": rules})
    ensure(cluster, {**rbac, "kind": "ClusterRoleBinding", "metadata": named, "subjects": [subject], "roleRef": role})
    return kube_rights.token(cluster, name, namespace=SPACE)


def until(what: str, answer: Callable[[], ApiAnswer], status: int) -> None:
    """Rights and policies take effect soon after they are written."""
    deadline = time.monotonic() + SECONDS
    while (reply := answer()).status != status:
        assert time.monotonic() < deadline, f"{what}: {reply.status} {reply.message}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def ruled(cluster: Cluster) -> Iterator[As]:
    """The cluster with the policies in effect, as one of its users."""
    kube_crds.install(cluster)
    for name, labels in ((SPACE, {}), (COUNTED, {}), (WATCHERS, {meta.ADMIN_ACCESS: "true"})):
        ensure(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    tokens = {name: account(cluster, name) for name in USERS}
    tokens["admin"] = cluster.token
    made = [body for path in MANIFESTS for body in yaml.safe_load_all(path.read_text()) if ensure(cluster, body)]
    classes = path_of(API_KINDS["DeviceClass"])
    for body in (gpu_class("policies-gpu"), gpu_class("policies-watch", adminAccess=True)):
        assert cluster.create(classes, body).ok

    def as_user(name: str) -> Cluster:
        return replace(cluster, token=tokens[name])

    person = as_user("person")
    try:
        for name in ("person", "trusted", OWNER):
            until("rights", lambda name=name: as_user(name).create(CLAIMS, a_claim("probe"), dry_run=True), 201)  # type: ignore[misc]
        for name in ("controller", "plugin"):
            until("rights", lambda name=name: as_user(name).get(CLAIMS), 200)  # type: ignore[misc]
        for body in refused_at_once():
            path = path_of(API_KINDS[body["kind"]], SPACE)
            until("policies", lambda path=path, body=body: person.create(path, body, dry_run=True), 403)  # type: ignore[misc]
        for path, body in ((CLAIMS, a_claim("probe")), (MACHINES, a_machine("probe"))):
            full = deep_changed(body, "labels", {f"a{number}": "b" for number in range(65)})
            until("policies", lambda path=path, full=full: person.create(path, full, dry_run=True), 422)  # type: ignore[misc]
        yield as_user
    finally:
        for body in reversed(made):
            cluster.delete(f"{path_of_manifest(body)}/{body['metadata']['name']}")
        for name in ("policies-gpu", "policies-watch"):
            cluster.delete(f"{classes}/{name}")


def a_claim(name: str, device_class: str = "policies-gpu", count: int = 1, **annotations: str) -> dict[str, Any]:
    claim = gpu_claim(name, count, SPACE, **annotations)
    claim["spec"]["claims"][0]["deviceClass"] = device_class
    return claim


def a_machine(name: str) -> dict[str, Any]:
    """One that names nothing but what is its namespace's."""
    machine = good("VirtualMachine")
    start = {"kernel": "/images/shared/vmlinuz", "disks": [{"path": f"/images/{SPACE}/a.qcow2", "format": "qcow2"}]}
    spec = {name: value for name, value in machine["spec"].items() if name != "adopt"} | {"start": start, "nics": []}
    return {**machine, "metadata": {"name": name, "namespace": SPACE}, "spec": spec}


def refused_at_once() -> list[dict[str, Any]]:
    """Something for each policy on the objects themselves."""
    machine = a_machine("probe")
    machine["metadata"]["annotations"] = {meta.LEADER: "9"}
    tapped = a_machine("probe")
    tapped["spec"]["nics"] = [{"backend": "tap", "interface": "br0"}]
    claim = a_claim("probe", **{"allocated-node": "n"})
    return [claim, a_claim("probe", "policies-watch"), a_claim("probe", priority="1"), machine, tapped]


STATUS = {"allocations": [{"devicePoolName": "p", "deviceName": "d"}]}
ALLOCATED = {meta.ALLOCATED_NODE: "n", meta.ALLOCATED_DEVICES: "p/d", meta.ALLOCATED_SPEC: "{}"}


@pytest.fixture(scope="module")
def allocated(ruled: As) -> Iterator[dict[str, Any]]:
    """A claim that the controller has allocated, as it is stored."""
    admin, controller = ruled("admin"), ruled("controller")
    created = ruled("person").create(CLAIMS, a_claim("held"))
    assert created.ok, created.message
    noted = with_change(created.content, "metadata.annotations", ALLOCATED)
    noted = controller.replace(f"{CLAIMS}/held", noted).content
    answer = controller.replace(f"{CLAIMS}/held/status", noted | {"status": STATUS})
    assert answer.ok, answer.message
    yield answer.content
    stored = admin.get(f"{CLAIMS}/held").content
    stored["metadata"].pop("finalizers", None)
    admin.replace(f"{CLAIMS}/held", stored)
    assert admin.delete(f"{CLAIMS}/held").ok


OWN_FIELD = "only the controller of devalloc writes"
WRITES: list[tuple[str, str, Any, Mapping[str, str]]] = [
    # where, what is written there, and the message for users who may not
    (f"annotations.{meta.ALLOCATED_NODE}", "elsewhere", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.ALLOCATED_NODE}", None, {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.ALLOCATED_SPEC}", '{"claims":[]}', {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.ALLOCATED_DEVICES}", "p/e", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.ALLOCATION_DETAILS}", '["0"]', {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.ADMIN_CLASSES}", '["gpu"]', {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.REASON}", "Because", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.MESSAGE}", "because", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.LEADER}", "7", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (f"annotations.{meta.TRANSACTION}", "{}", {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    (
        f"annotations.{meta.PREPARED_ON}",
        "n",
        dict.fromkeys(("person", "controller"), "only a node writes devalloc.io/prepared"),
    ),
    ("finalizers", [meta.NODE_FINALIZER], dict.fromkeys(("person", "controller"), "only a node sets it")),
    (f"annotations.{meta.RELEASE}", "forced", {}),
    (f"annotations.{meta.PRIORITY}", "-5", {}),
    (f"annotations.{meta.NODE}", "n", {}),
    (f"annotations.{meta.GROUP}", "vm", {}),
    ("annotations.team.example.com/cost", "7", {}),
    ("finalizers", ["team.example.com/bill"], {}),
    ("labels", {"team": "a"}, {}),
]


@pytest.mark.parametrize(("where", "value", "messages"), WRITES, ids=lambda value: str(value)[:40])
def test_each_field_of_a_claims_metadata_has_its_writers(
    ruled: As, allocated: dict[str, Any], where: str, value: Any, messages: Mapping[str, str]
) -> None:
    content = deep_changed(allocated, where, value)
    for user in (*USERS, "admin"):
        answer = ruled(user).replace(f"{CLAIMS}/held", content, dry_run=True)
        expect(answer, message_for(user, messages), user)


def message_for(user: str, messages: Mapping[str, str]) -> str | None:
    """Neither who owns the namespace nor whom an admin trusts with more is taken for the controller or a node."""
    return messages.get(user, messages.get("person") if user in (OWNER, "trusted") else None)


def deep_changed(content: dict[str, Any], where: str, value: Any) -> dict[str, Any]:
    """Of the metadata, where names of annotations have dots."""
    metadata = dict(content["metadata"])
    part, _, name = where.partition(".")
    if name:
        others = {key: text for key, text in metadata.get(part, {}).items() if key != name}
        metadata[part] = others if value is None else others | {name: value}
    else:
        metadata[part] = value
    return {**content, "metadata": metadata}


def expect(answer: ApiAnswer, message: str | None, user: str) -> None:
    if message is None:
        assert answer.ok, f"{user}: {answer.message}"
    else:
        assert answer.status == 403, f"{user}: {answer.status} {answer.message}"
        assert message in answer.message, user


GIVEN = [
    ("allocations", [{"devicePoolName": "p", "deviceName": "e"}], {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    ("allocations", None, {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    ("classConfigs", [{"kind": "VfConfig", "spec": {"vlan": 7}}], {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    ("classConfigAllocations", [[0]], {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    ("claimConfigs", [{"kind": "VfConfig"}], {"person": OWN_FIELD, "plugin": OWN_FIELD}),
    ("deviceStatuses", [{"devicePoolName": "p", "deviceName": "d"}], {"person": "only nodes and the controller"}),
    ("podNames", ["web"], {"person": "only nodes and the controller"}),
]


@pytest.mark.parametrize(("where", "value", "messages"), GIVEN, ids=lambda value: str(value)[:40])
def test_each_field_of_a_claims_status_has_its_writers(
    ruled: As, allocated: dict[str, Any], where: str, value: Any, messages: Mapping[str, str]
) -> None:
    status = {name: text for name, text in allocated["status"].items() if name != where}
    status |= {} if value is None else {where: value}
    for user in (*USERS, "admin"):
        if user == "trusted":
            continue  # may not write statuses at all
        answer = ruled(user).replace(f"{CLAIMS}/held/status", allocated | {"status": status}, dry_run=True)
        expect(answer, message_for(user, messages), user)


def test_a_status_brings_nothing_else_along(ruled: As, allocated: dict[str, Any]) -> None:
    """The API server keeps the metadata: who may write the status gets around no policy by it."""
    content = deep_changed(allocated, f"annotations.{meta.ALLOCATED_NODE}", "elsewhere")
    content = deep_changed(content, "finalizers", [meta.NODE_FINALIZER])
    status = {**allocated["status"], "podNames": ["web"]}
    answer = ruled("plugin").replace(f"{CLAIMS}/held/status", content | {"status": status}, dry_run=True)
    assert answer.ok, answer.message
    assert answer.content["status"]["podNames"] == ["web"]
    assert answer.content["metadata"]["annotations"] == allocated["metadata"]["annotations"]
    assert "finalizers" not in answer.content["metadata"]


def test_a_prepared_claim_is_let_go_of_by_its_node_alone(ruled: As, allocated: dict[str, Any]) -> None:
    """A user who removes the mark has the devices given to another claim while a machine has them."""
    plugin, path = ruled("plugin"), f"{CLAIMS}/held"
    marked = deep_changed(allocated, f"annotations.{meta.PREPARED_ON}", "n")
    marked = plugin.replace(path, deep_changed(marked, "finalizers", [meta.NODE_FINALIZER]))
    assert marked.ok, marked.message
    for user in ("person", "controller"):
        refused = ruled(user).replace(path, deep_changed(marked.content, "finalizers", []), dry_run=True)
        expect(refused, "if the node is lost and powered off, an admin fences it: devalloc fence", user)
    wanted = ruled("person").replace(path, deep_changed(marked.content, f"annotations.{meta.RELEASE}", "forced"))
    assert wanted.ok, wanted.message
    bare = deep_changed(wanted.content, f"annotations.{meta.PREPARED_ON}", None)
    expect(plugin.replace(path, deep_changed(bare, "finalizers", [])), None, "plugin")


@pytest.mark.parametrize("name", ["allocated-node", "allocated-spec", "reason", "leader", "prepared-on"])
def test_the_refusal_of_a_copied_manifest_names_what_to_leave_out(ruled: As, name: str) -> None:
    for user in ("person", OWNER):
        refused = ruled(user).create(CLAIMS, a_claim("copy", **{name: "x"}), dry_run=True)
        assert refused.status == 403
        assert f"devalloc.io/{name}" in refused.message


@pytest.mark.parametrize("path", [CLAIMS, MACHINES], ids=["claim", "machine"])
def test_no_user_creates_an_object_with_a_nodes_finalizer(ruled: As, path: str) -> None:
    body = a_claim("born") if path == CLAIMS else a_machine("born")
    body["metadata"]["finalizers"] = [meta.NODE_FINALIZER]
    for user in ("person", OWNER):
        refused = ruled(user).create(path, body, dry_run=True)
        assert refused.status == 403
        assert "only a node sets it" in refused.message


VALUES = ["0", "-5", "+7", "007", "9223372036854775807", "-9223372036854775807", "9223372036854775808"]
VALUES += ["", "high", "1.5", "1 ", "99999999999999999999", "-00000000000000000001", "000000000000000000001", "\u0661"]


@pytest.mark.parametrize("text", VALUES)
def test_priorities_are_judged_as_decode_judges_them(ruled: As, text: str) -> None:
    content = a_claim("a", priority=text)
    answer = ruled("trusted").create(CLAIMS, content, dry_run=True)
    assert answer.ok == (decode(content).object is not None), answer.message
    if not answer.ok:
        assert answer.status == 422
        assert "metadata.annotations[devalloc.io/priority]: must be a 64-bit integer" in answer.message
    machine = a_machine("a")
    machine["metadata"]["annotations"] = {meta.PRIORITY: text}
    assert ruled("trusted").create(MACHINES, machine, dry_run=True).ok == answer.ok


FIRST = "a priority above 0 is set or raised only by those who may prioritize"


@pytest.mark.parametrize("path", [CLAIMS, MACHINES], ids=["claim", "machine"])
def test_a_priority_above_0_needs_a_right_in_the_whole_cluster(ruled: As, path: str) -> None:
    """Else one namespace could always be first in the whole cluster."""

    def with_priority(text: str) -> dict[str, Any]:
        body = a_claim("first") if path == CLAIMS else a_machine("first")
        return deep_changed(body, "annotations", {meta.PRIORITY: text})

    for user in ("person", OWNER):
        for text in ("1", "+7", "007", "9223372036854775807"):
            expect(ruled(user).create(path, with_priority(text), dry_run=True), FIRST, user)
        for text in ("0", "-5", "-9223372036854775807", "000"):
            expect(ruled(user).create(path, with_priority(text), dry_run=True), None, user)
    stored = ruled("trusted").create(path, with_priority("5"))
    assert stored.ok, stored.message
    try:
        for user in ("person", OWNER):
            for text, words in (("5", None), ("4", None), ("0", None), ("6", FIRST), ("05", None), ("x", "integer")):
                content = deep_changed(stored.content, f"annotations.{meta.PRIORITY}", text)
                content = deep_changed(content, "labels", {"team": "a"})
                answer = ruled(user).replace(f"{path}/first", content, dry_run=True)
                if text == "x":
                    assert answer.status == 422
                else:
                    expect(answer, words, user)
            gone = deep_changed(stored.content, f"annotations.{meta.PRIORITY}", None)
            expect(ruled(user).replace(f"{path}/first", gone, dry_run=True), None, user)
        noted = deep_changed(stored.content, f"annotations.{meta.LEADER}", "7")
        expect(ruled("controller").replace(f"{path}/first", noted, dry_run=True), None, "controller")
    finally:
        assert ruled("admin").delete(f"{path}/first").ok


OVERCOMMIT = "set, changed and removed only by those who may overcommit virtualmachines in the whole cluster"


@pytest.mark.parametrize("name", ["vm.neon.tech/overcommit", "vm.neon.tech/usage"])
def test_what_a_machine_counts_for_needs_a_right_in_the_whole_cluster(ruled: As, name: str) -> None:
    """Else the author of one machine could have all of its node, or have others migrated from it."""

    def overcommitted(text: str) -> dict[str, Any]:
        return deep_changed(a_machine("dense"), "annotations", {name: text})

    many, few = '{"cpu":"1000","memory":"1000"}', '{"cpu":"2","memory":"1"}'
    for user in ("person", OWNER):
        expect(ruled(user).create(MACHINES, overcommitted(many), dry_run=True), OVERCOMMIT, user)
    stored = ruled("trusted").create(MACHINES, overcommitted(few))
    assert stored.ok, stored.message
    try:
        for user in ("person", OWNER):
            for text in (many, '{"cpu":"0.5"}', "", None):
                content = deep_changed(stored.content, f"annotations.{name}", text)
                expect(ruled(user).replace(f"{MACHINES}/dense", content, dry_run=True), OVERCOMMIT, user)
            labelled = deep_changed(stored.content, "labels", {"team": "a"})
            expect(ruled(user).replace(f"{MACHINES}/dense", labelled, dry_run=True), None, user)
        gone = deep_changed(stored.content, f"annotations.{name}", None)
        expect(ruled("trusted").replace(f"{MACHINES}/dense", gone, dry_run=True), None, "trusted")
        noted = deep_changed(stored.content, f"annotations.{meta.LEADER}", "7")
        expect(ruled("controller").replace(f"{MACHINES}/dense", noted, dry_run=True), None, "controller")
    finally:
        assert ruled("admin").delete(f"{MACHINES}/dense").ok


def test_so_does_one_in_the_template_of_a_replica_set_which_then_gets_its_machines(ruled: As) -> None:
    name = "vm.neon.tech/overcommit"
    few = '{"cpu":"2","memory":"1"}'
    plain = a_set({"start": {"kernel": f"/images/{SPACE}/vmlinuz"}}, "dense")
    template = {**plain["spec"]["template"], "metadata": {"annotations": {name: few}}}
    dense = {**plain, "spec": {**plain["spec"], "template": template}}
    for user in ("person", OWNER):
        expect(ruled(user).create(SETS, dense, dry_run=True), OVERCOMMIT, user)
        expect(ruled(user).create(SETS, plain, dry_run=True), None, user)
    stored = ruled("trusted").create(SETS, dense)
    assert stored.ok, stored.message
    try:
        for user in ("person", OWNER):
            expect(
                ruled(user).replace(f"{SETS}/dense", {**stored.content, "spec": plain["spec"]}, dry_run=True),
                OVERCOMMIT,
                user,
            )
            more = deep_changed(stored.content, "labels", {"team": "a"})
            expect(ruled(user).replace(f"{SETS}/dense", more, dry_run=True), None, user)
        made = machine_manifest(stored.content, "dense-1")
        assert made["metadata"]["annotations"] == {name: few}
        expect(ruled("controller").create(MACHINES, made, dry_run=True), None, "controller")
    finally:
        assert ruled("admin").delete(f"{SETS}/dense").ok


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("vm", "numa"),
        ("vm", " numa , pcieRoot"),
        (None, "numa"),
        ("", "numa"),
        ("vm", ""),
        ("vm", "numa,"),
        ("vm", ",".join("a" * 32)),
        ("vm", ",".join("a" * 33)),
        ("vm", "a" * 253),
        ("vm", "a" * 254),
    ],
    ids=lambda value: str(value)[:12],
)
def test_group_matches_are_judged_as_decode_judges_them(ruled: As, group: str | None, names: str) -> None:
    noted = {"group-match": names} | ({} if group is None else {"group": group})
    content = a_claim("a", **noted)
    answer = ruled("person").create(CLAIMS, content, dry_run=True)
    assert answer.ok == (decode(content).object is not None), answer.message
    assert answer.ok or "metadata.annotations[devalloc.io/group-match]: " in answer.message


NAMES = ["vm", "", "a b/c ü", "../../etc", "a\x07b", "a\x1b[2J", "a\nb", "x" * 253, "x" * 254]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in ("group", "node") for text in NAMES),
        *(("release", text) for text in ("asked", "forced", "now", "", "Forced")),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_names_and_releases_are_judged_as_decode_judges_them(ruled: As, name: str, text: str) -> None:
    content = a_claim("a", **{name: text})
    answer = ruled("person").create(CLAIMS, content, dry_run=True)
    assert answer.ok == (decode(content).object is not None), answer.message
    assert answer.ok or f"metadata.annotations[devalloc.io/{name}]: must be " in answer.message


# -- room for the mark of a new leader ---------------------------------------------------------------------------------

FULL = {f"team-{number}": "x" for number in range(64)}


@pytest.mark.parametrize("path", [CLAIMS, MACHINES], ids=["claim", "machine"])
def test_people_leave_room_for_the_mark_of_a_new_leader(ruled: As, path: str) -> None:
    person, controller = ruled("person"), ruled("controller")
    body = a_claim("full") if path == CLAIMS else a_machine("full")
    most = {"b": "é" * ((64 << 10) - 1) + "x"}  # 128 KiB of UTF-8 with the name
    for part, values, words in (
        ("labels", FULL | {"more": "x"}, "metadata.labels: must be at most 64"),
        ("annotations", {**most, "c": ""}, "metadata.annotations: must be at most 128 KiB in all"),
    ):
        refused = person.create(path, deep_changed(body, part, values), dry_run=True)
        assert refused.status == 422, refused.message
        assert words in refused.message
    stored = person.create(path, deep_changed(deep_changed(body, "labels", FULL), "annotations", most))
    assert stored.ok, stored.message
    try:
        for where in (f"annotations.{meta.LEADER}", f"labels.{meta.LEADER}", f"labels.{meta.NODE_LABEL}"):
            answer = controller.replace(f"{path}/full", deep_changed(stored.content, where, "7"), dry_run=True)
            assert answer.ok, answer.message
    finally:
        assert ruled("admin").delete(f"{path}/full").ok


def test_what_etcd_has_no_room_for_keeps_no_leader_from_deciding(ruled: As) -> None:
    """No policy bounds all of an object, and a refusal by etcd's 1.5 MiB is an error of the server: it is certain that
    nothing was written."""
    admin = ruled("admin")
    store = KubernetesStore(Client.connect(kubeconfig(ruled("controller"), "controller")))
    try:
        for size in range(1_573_000, 1_560_000, -1000):
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * size, "uid": "u"}
            if admin.create(CLAIMS, deep_changed(a_claim("huge"), "ownerReferences", [owner])).ok:
                break
        stored = store.get("DeviceClaim", SPACE, "huge")
        stamp = Change(Key.of(stored), stored["metadata"]["resourceVersion"], None, {meta.LEADER: "7" * 4000})
        assert isinstance(store.commit_each([[stamp]])[0], Conflict)
        with pytest.raises(Invalid, match="request is too large"):
            store.replace(deep_changed(stored, "annotations", {meta.LEADER: "7" * 4000}))
        assert store.get("DeviceClaim", SPACE, "huge") == stored
    finally:
        store.close()
        admin.delete(f"{CLAIMS}/huge")


def test_objects_that_are_wrong_already_can_still_be_changed_elsewhere(ruled: As) -> None:
    """Claims from before the policies are there: their authors can still release or delete them."""
    admin, name = ruled("admin"), "devalloc-priority"
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    old = a_claim("old", priority="high")
    current = admin.get(f"{bindings}/{name}").content
    assert admin.delete(f"{bindings}/{name}").ok
    try:
        until("no policy", lambda: admin.create(CLAIMS, old), 201)
    finally:
        current["metadata"] = {"name": name}
        ensure(admin, current)
    try:
        until("policies", lambda: admin.create(CLAIMS, a_claim("probe", priority="x"), dry_run=True), 422)
        stored = admin.get(f"{CLAIMS}/old").content
        answer = ruled("person").replace(f"{CLAIMS}/old", deep_changed(stored, "labels", {"team": "a"}))
        assert answer.ok, answer.message
    finally:
        assert admin.delete(f"{CLAIMS}/old").ok


# -- admin access --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["person", "admin"])
def test_admin_access_needs_a_labelled_namespace(ruled: As, user: str) -> None:
    api = ruled(user)
    direct, chosen = a_claim("w", "policies-watch"), a_claim("w")
    chosen["spec"]["claims"] = [{"oneOf": [{"deviceClass": "policies-gpu"}, {"deviceClass": "policies-watch"}]}]
    for claim in (direct, chosen):
        refused = api.create(CLAIMS, claim, dry_run=True)
        message = (
            f"spec.claims: class policies-watch has admin access, which namespace {SPACE} cannot use; "
            'an admin labels it devalloc.io/admin-access: "true"'
        )
        assert refused.status == 403
        assert message in refused.message
        answer = api.create(path_of(API_KINDS["DeviceClaim"], WATCHERS), moved(claim, WATCHERS), dry_run=True)
        assert answer.ok, answer.message
    assert api.create(CLAIMS, a_claim("w"), dry_run=True).ok
    assert api.create(CLAIMS, a_claim("w", "no-such-class"), dry_run=True).ok, "a class may come later"


# -- machines ------------------------------------------------------------------------------------------------------


def test_each_field_of_a_machine_has_its_writers(ruled: As) -> None:
    person, controller, plugin = ruled("person"), ruled("controller"), ruled("plugin")
    created = person.create(MACHINES, a_machine("web"))
    assert created.ok, created.message
    path, machine = f"{MACHINES}/web", created.content
    placement = {"allocations": [{"devicePoolName": "n-host", "deviceName": "numa0"}], "nodeName": "n"}
    try:
        for name in (meta.LEADER, meta.TRANSACTION):
            for user, message in (("person", OWN_FIELD), ("plugin", OWN_FIELD), ("controller", None)):
                content = deep_changed(machine, f"annotations.{name}", "7")
                expect(ruled(user).replace(path, content, dry_run=True), message, user)
        held = deep_changed(machine, "finalizers", [meta.NODE_FINALIZER])
        held = deep_changed(held, f"annotations.{meta.PREPARED_ON}", "n")
        for user, words in (("person", "only a node sets it"), ("controller", "only a node sets it"), ("plugin", None)):
            expect(ruled(user).replace(path, held, dry_run=True), words, user)
        for user, words in (("person", OWN_FIELD), ("plugin", OWN_FIELD), ("controller", None)):
            expect(ruled(user).replace(f"{path}/status", machine | {"status": placement}, dry_run=True), words, user)
        placed = controller.replace(f"{path}/status", machine | {"status": placement}).content
        runs = {**placement, "phase": "Running"}
        expect(plugin.replace(f"{path}/status", placed | {"status": runs}, dry_run=True), None, "plugin")
        message = "only nodes and the controller of devalloc write the status of a machine"
        expect(person.replace(f"{path}/status", placed | {"status": runs}, dry_run=True), message, "person")
        given_back = {"nodeName": "n", "phase": "Stopped"}
        expect(plugin.replace(f"{path}/status", placed | {"status": given_back}, dry_run=True), None, "plugin")
    finally:
        ruled("admin").delete(path)


NEEDS_A_RIGHT = "only those who may use-host-paths of virtualmachines in the whole cluster name this"
FOREIGN: list[tuple[str, dict[str, Any]]] = [
    # what is named, and the spec that does
    ("disk /images/team-b/a.qcow2", {"start": {"disks": [{"path": "/images/team-b/a.qcow2", "format": "qcow2"}]}}),
    ("disk /images/shared/a.raw", {"start": {"disks": [{"path": "/images/shared/a.raw", "format": "raw"}]}}),
    (
        "read-only disk /images/a.raw",
        {"start": {"disks": [{"path": "/images/a.raw", "format": "raw", "readOnly": True}]}},
    ),
    ("kernel or initrd /boot/vmlinuz", {"start": {"kernel": "/boot/vmlinuz"}}),
    ("kernel or initrd /etc/shadow", {"start": {"kernel": "/images/shared/vmlinuz", "initrd": "/etc/shadow"}}),
    ("TAP vnet-mgmt", {"nics": [{"backend": "tap", "interface": "vnet-mgmt"}]}),
    ("QMP socket /run/qemu/a.qmp", {"nodeName": "n", "adopt": {"qmpSocket": "/run/qemu/a.qmp"}}),
]
MIGRATIONS = path_of(API_KINDS["VirtualMachineMigration"], SPACE)


def test_users_set_neither_the_target_of_a_migration_nor_its_certificates(ruled: As) -> None:
    """Who writes an address and a certificate there gets the machine's memory."""
    stored = ruled("person").create(MIGRATIONS, migration("moves", "vm", namespace=SPACE))
    assert stored.ok, stored.message
    try:
        assert stored.content["status"] == DEFAULT_STATUS["VirtualMachineMigration"]
        to = {"address": "10.9.9.9", "port": 4444, "certificate": CERTIFICATE}
        status = {"phase": "TargetReady", "sourceNode": "a", "targetNode": "b", "destination": to}
        forged = {**stored.content, "status": status}
        for user in ("person", OWNER):
            answer = ruled(user).replace(f"{MIGRATIONS}/moves/status", forged, dry_run=True)
            expect(answer, "only nodes and the controller of devalloc write the status of a migration", user)
            whole = ruled(user).replace(f"{MIGRATIONS}/moves", forged, dry_run=True)
            assert whole.ok, whole.message
            assert whole.content["status"] == stored.content["status"], user
        for user in ("controller", "plugin"):
            expect(ruled(user).replace(f"{MIGRATIONS}/moves/status", forged, dry_run=True), None, user)
    finally:
        assert ruled("admin").delete(f"{MIGRATIONS}/moves").ok


SETS = path_of(API_KINDS["VirtualMachineReplicaSet"], SPACE)
OWN: list[dict[str, Any]] = [
    {"disk": "1Gi", "start": {"disks": [{"path": "/images/shared/a.raw", "format": "raw", "clone": "overlay"}]}},
    {"start": {"disks": [{"path": f"/images/{SPACE}/data/a.qcow2", "format": "qcow2"}]}},
    {"start": {"disks": [{"path": "/images/shared/a.raw", "format": "raw", "readOnly": True}]}},
    {"start": {"kernel": f"/images/{SPACE}/vmlinuz", "initrd": "/images/shared/initrd"}},
    {"nics": [{"backend": "tap", "interface": f"{SPACE}.lan"}, {"backend": "user"}, {"backend": "warm"}]},
]


def naming(body: dict[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The machine with what it names of its host; one that is adopted has neither start nor cards."""
    spec = {**body["spec"], **named}
    if "adopt" in named:
        spec = {name: value for name, value in spec.items() if name not in ("start", "nics", "pciSlots")}
    return {**body, "spec": spec}


@pytest.mark.parametrize(("what", "named"), FOREIGN, ids=lambda value: value if isinstance(value, str) else "")
def test_what_does_not_look_like_the_namespaces_own_on_a_host_needs_a_right(
    ruled: As, what: str, named: dict[str, Any]
) -> None:
    body = naming(a_machine("names"), named)
    for user in ("person", OWNER):
        refused = ruled(user).create(MACHINES, body, dry_run=True)
        expect(refused, f"spec: {what}: {NEEDS_A_RIGHT}", user)
    expect(ruled("trusted").create(MACHINES, body, dry_run=True), None, "trusted")


@pytest.mark.parametrize("named", OWN, ids=lambda value: "-".join(value))
def test_resources_of_a_host_that_belong_to_the_namespace_need_no_right(ruled: As, named: dict[str, Any]) -> None:
    expect(ruled("person").create(MACHINES, naming(a_machine("names"), named), dry_run=True), None, "person")


def a_set(spec: dict[str, Any], name: str = "made") -> dict[str, Any]:
    body = {name: a_machine("names")[name] for name in ("apiVersion",)} | {"kind": "VirtualMachineReplicaSet"}
    bounds = {part: a_machine("names")["spec"][part] for part in ("cpu", "memory")}
    return {**body, "metadata": {"name": name}, "spec": {"replicas": 2, "template": {"spec": {**bounds, **spec}}}}


def test_what_machines_are_made_from_needs_the_right_that_they_would_need(ruled: As) -> None:
    """The controller, which makes them, may name any path."""
    foreign = a_set({"start": {"kernel": "/boot/vmlinuz"}})
    shared = a_set({"start": {"kernel": "/images/shared/vmlinuz"}})
    refused = ruled("person").create(SETS, foreign, dry_run=True)
    expect(refused, f"spec: kernel or initrd /boot/vmlinuz: {NEEDS_A_RIGHT}", "person")
    expect(ruled("trusted").create(SETS, foreign, dry_run=True), None, "trusted")
    expect(ruled("person").create(SETS, shared, dry_run=True), None, "person")
    machine = naming(a_machine("names"), {"start": {"kernel": "/boot/vmlinuz"}})
    expect(ruled("controller").create(MACHINES, machine, dry_run=True), None, "controller")
    stored = ruled("trusted").create(SETS, foreign)
    assert stored.ok, stored.message
    try:
        scaled = {**stored.content, "spec": {**stored.content["spec"], "replicas": 5}}
        expect(ruled("person").replace(f"{SETS}/made", scaled, dry_run=True), None, "person")
        worse = a_set({"start": {"kernel": "/boot/other"}})["spec"]
        changed = {**stored.content, "spec": worse}
        expect(ruled("person").replace(f"{SETS}/made", changed, dry_run=True), NEEDS_A_RIGHT, "person")
    finally:
        assert ruled("admin").delete(f"{SETS}/made").ok


def test_a_machine_that_names_more_already_can_be_changed_otherwise(ruled: As) -> None:
    disk = {"path": "/images/shared/a.raw", "format": "raw", "readOnly": True}
    kernel = {"kernel": "/boot/vmlinuz", "disks": [disk]}
    stored = ruled("trusted").create(MACHINES, naming(a_machine("trusted"), {"start": kernel}))
    assert stored.ok, stored.message
    path, person = f"{MACHINES}/trusted", ruled("person")
    try:
        stopped = {**stored.content, "spec": {**stored.content["spec"], "running": False}}
        expect(person.replace(path, stopped, dry_run=True), None, "person")
        for start in (
            {**kernel, "initrd": "/boot/initrd"},
            {**kernel, "disks": [{**disk, "readOnly": False}]},
            {"kernel": "/images/shared/vmlinuz", "disks": [{"path": "/boot/vmlinuz", "format": "raw"}]},
        ):
            changed_start = naming(stored.content, {"start": start})
            expect(person.replace(path, changed_start, dry_run=True), NEEDS_A_RIGHT, "person")
    finally:
        assert ruled("admin").delete(path).ok


# -- names that have no effect -----------------------------------------------------------------------------------------

NODE = {"kind": "Node", "metadata": {"name": "policies-node"}}
SPACE_BODY = {"kind": "Namespace", "metadata": {"name": "policies-new"}}


def quota(**hard: str) -> dict[str, Any]:
    return {"kind": "ResourceQuota", "metadata": {"name": "typo"}, "spec": {"hard": hard}}


def resource_claim() -> dict[str, Any]:
    requests = [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]
    return {"kind": "ResourceClaim", "metadata": {"name": "typo"}, "spec": {"devices": {"requests": requests}}}


RESOURCE_CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{SPACE}/resourceclaims"
QUOTAS = f"/api/v1/namespaces/{SPACE}/resourcequotas"
NAMES: list[tuple[str, dict[str, Any], str, dict[str, str], str]] = [
    # where, what, a part of its metadata with what in it, and the warning; none where all is well
    (CLAIMS, a_claim("typo"), "annotations", {"devalloc.io/prioritty": "5"}, "metadata.annotations[devalloc.io/priori"),
    (CLAIMS, a_claim("typo"), "labels", {meta.PRIORITY: "5"}, "metadata.labels[devalloc.io/priority]: is unknown"),
    (CLAIMS, a_claim("typo"), "annotations", {meta.GROUP: "a", "team.example.com/a": "b"}, ""),
    (MACHINES, a_machine("typo"), "annotations", {meta.GROUP: "a"}, "metadata.annotations[devalloc.io/group]: is unk"),
    (
        RESOURCE_CLAIMS,
        resource_claim(),
        "labels",
        {"devalloc.io/allocater": "devalloc"},
        "metadata.labels[devalloc.io/al",
    ),
    (
        RESOURCE_CLAIMS,
        resource_claim(),
        "labels",
        {"devalloc.io/allocator": "x"},
        "must be one of: devalloc",
    ),
    (RESOURCE_CLAIMS, resource_claim(), "labels", {"devalloc.io/allocator": "devalloc"}, ""),
    (
        "/api/v1/nodes",
        NODE,
        "labels",
        {"devalloc.io/publish": "Pools"},
        "must be one of: slices, pools, host, set-aside",
    ),
    (
        "/api/v1/nodes",
        NODE,
        "labels",
        {"devalloc.io/publsih": "pools"},
        "those that people write there: devalloc.io/pub",
    ),
    ("/api/v1/nodes", NODE, "labels", {"devalloc.io/publish": "none"}, ""),
    (
        "/api/v1/namespaces",
        SPACE_BODY,
        "labels",
        {meta.ADMIN_ACCESS: "yes"},
        "must be one of: true",
    ),
    ("/api/v1/namespaces", SPACE_BODY, "labels", {meta.ADMIN_ACCESS: "true"}, ""),
    (QUOTAS, quota(**{"gpu.deviceclas.devmgmtproto.k8s.io/devices": "1"}), "labels", {}, "spec.hard[gpu.deviceclas."),
    (
        QUOTAS,
        quota(**{"gpu.deviceclass.devmgmtproto.k8s.io/device": "1"}),
        "labels",
        {},
        "is unknown and bounds nothing",
    ),
    (
        QUOTAS,
        quota(**{"count/deviceclaim.devmgmtproto.k8s.io": "1"}),
        "labels",
        {},
        "claims of a namespace are count/d",
    ),
    (QUOTAS, quota(**{"gpu.deviceclass.devmgmtproto.k8s.io/devices": "1"}), "labels", {}, ""),
    (QUOTAS, quota(**{"gpu.deviceclass.resource.k8s.io/devices": "1", "pods": "1"}), "labels", {}, ""),
    (QUOTAS, quota(**{"requests.deviceclass.resource.kubernetes.io/gpu": "1"}), "labels", {}, ""),
]


@pytest.mark.parametrize(("path", "body", "part", "values", "words"), NAMES, ids=lambda value: str(value)[-40:])
def test_a_name_that_has_no_effect_is_warned_of(
    ruled: As, path: str, body: dict[str, Any], part: str, values: dict[str, str], words: str
) -> None:
    admin = ruled("admin")
    slip = a_claim("typo", slip="x")
    waiting.until(lambda: admin.create(CLAIMS, slip, dry_run=True).warnings, "the policy counts")
    answer = admin.create(path, deep_changed(body, part, values), dry_run=True)
    assert answer.ok, answer.message
    assert words in " ".join(answer.warnings) if words else answer.warnings == []


def test_an_unchanged_mistake_causes_no_second_warning(ruled: As) -> None:
    """Else every write of the controller would bring warnings into its log."""
    admin = ruled("admin")
    slip = a_claim("slip", slip="x")
    waiting.until(lambda: admin.create(CLAIMS, slip, dry_run=True).warnings, "the policy counts")
    stored = admin.create(CLAIMS, slip)
    try:
        labelled = deep_changed(stored.content, "labels", {"team": "a"})
        assert admin.replace(f"{CLAIMS}/slip", labelled, dry_run=True).warnings == []
        other = deep_changed(stored.content, "annotations.devalloc.io/slip", "y")
        assert admin.replace(f"{CLAIMS}/slip", other, dry_run=True).warnings != []
    finally:
        assert admin.delete(f"{CLAIMS}/slip").ok


# -- counts --------------------------------------------------------------------------------------------------------


def test_kubernetes_counts_claims_itself(ruled: As) -> None:
    """``count/deviceclaims…`` in a ResourceQuota. What its controller manager would write, how much there is, is
    written here; the API server refuses by it."""
    admin, person = ruled("admin"), ruled("person")
    quotas, resource = f"/api/v1/namespaces/{SPACE}/resourcequotas", "count/deviceclaims.devmgmtproto.k8s.io"
    ours = "gpu.deviceclass.devmgmtproto.k8s.io/devices"
    hard = {resource: "0", ours: "4"}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    made = admin.create(quotas, body)
    assert made.ok, made.message
    try:
        answer = admin.replace(
            f"{quotas}/few/status", made.content | {"status": {"hard": hard, "used": {resource: "0"}}}
        )
        assert answer.ok, answer.message
        until("quota", lambda: person.create(CLAIMS, a_claim("one"), dry_run=True), 403)
        refused = person.create(CLAIMS, a_claim("one"), dry_run=True)
        assert (
            f"exceeded quota: few, requested: {resource}=1, used: {resource}=0, limited: {resource}=0"
            in refused.message
        )
    finally:
        admin.delete(f"{quotas}/few")


def test_the_controller_holds_claims_to_quotas_and_labels(ruled: As) -> None:
    """As it runs on a cluster: with its token and the store of the API server."""
    admin, person = ruled("admin"), ruled("person")
    counted, watched = path_of(API_KINDS["DeviceClaim"], COUNTED), path_of(API_KINDS["DeviceClaim"], WATCHERS)
    classes, pools = path_of(API_KINDS["DeviceClass"]), path_of(API_KINDS["DevicePool"])
    quotas, name = (
        f"/api/v1/namespaces/{COUNTED}/resourcequotas",
        "policies-gpu.deviceclass.devmgmtproto.k8s.io/devices",
    )
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "compute"}}
    made = admin.create(quotas, quota | {"spec": {"hard": {name: "3"}}})
    assert made.ok, made.message
    store = KubernetesStore(Client.connect(kubeconfig(ruled("controller"), "controller")))
    try:
        assert admin.create(pools, gpu_pool("policies-pool", devices=4, node="policies-node")).ok
        for claim in (a_claim("a", count=2, priority="9"), a_claim("b", count=2), a_claim("c", "policies-late")):
            assert ruled("trusted").create(counted, moved(claim, COUNTED)).ok
        assert person.create(watched, moved(a_claim("w", "policies-watch"), WATCHERS)).ok
        assert admin.create(classes, gpu_class("policies-late", adminAccess=True)).ok, "after the claim that names it"
        kinds = [resource.kind for resource in (*OWN_KINDS, *CORE_KINDS)]
        allocator = machine_allocator(store, settings=AllocatorSettings(admin_namespaces="labelled"), kinds=kinds)
        deadline = time.monotonic() + SECONDS
        while not (used := admin.get(f"{quotas}/compute").content.get("status", {}).get("used")):
            assert time.monotonic() < deadline
            allocator.round()  # until what it reads has come that far
        claims_by_name = {one["metadata"]["name"]: one for one in admin.get(counted).content["items"]}
        noted = {name: one["metadata"].get("annotations", {}) for name, one in claims_by_name.items()}
        reasons = {name: noted[name].get(meta.REASON) for name in "abc"}
        assert reasons == {"a": None, "b": "QuotaExceeded", "c": "AdminAccessDenied"}
        assert len(claims_by_name["a"]["status"]["allocations"]) == 2
        few = f"quota {COUNTED}/compute allows 3 devices of class policies-gpu; others hold them"
        assert noted["b"][meta.MESSAGE].startswith(few)
        assert used == {name: "2"}
        assert admin.get(f"{watched}/w").content["status"]["allocations"]
    finally:
        store.close()
        for one in "abc":
            admin.delete(f"{counted}/{one}")
        for path in (f"{watched}/w", f"{quotas}/compute", f"{pools}/policies-pool", f"{classes}/policies-late"):
            admin.delete(path)


def moved(claim: dict[str, Any], namespace: str) -> dict[str, Any]:
    return {**claim, "metadata": {**claim["metadata"], "namespace": namespace}}


def kubeconfig(api: Cluster, name: str) -> Path:
    """For the user as whom ``api`` asks."""
    content = json.loads(api.kubeconfig("admin").read_text())
    content["users"][0]["user"]["token"] = api.token
    path = api.folder / f"policies-{name}.kubeconfig"
    path.touch(0o600)
    path.write_text(json.dumps(content))
    return path
