"""A real API server takes our CRDs and judges objects as decode() does."""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc.api.api_kind import ApiKind
from devalloc.api.conditions import DEFAULT_STATUS
from devalloc.api.decode import decode
from devalloc.api.kinds import API_KINDS
from devalloc.controller.reconcile.decision import IN_CONDITIONS, decide_claims
from devalloc_solver import solve_manifests
from tests.conformance import case
from tests.support import kube_crds
from tests.support.good_manifests import examples, good, good_manifests
from tests.support.kube_api import ApiAnswer, Cluster
from tests.support.kube_crds import CRDS, conditions, path_of
from tests.support.manifest_edit import with_change
from tests.support.manifest_mutations import mutated

MUTATIONS = 600
NOW = "2026-01-31T12:00:00Z"


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with our CRDs established and served."""
    kube_crds.install(cluster)
    for namespace in ("team-a", "system"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        answer = cluster.create("/api/v1/namespaces", body)
        assert answer.ok or answer.status == 409, answer.message
    return cluster


def offer(cluster: Cluster, content: dict[str, Any]) -> ApiAnswer:
    """What the server says about creating it; nothing is stored."""
    kind = API_KINDS[content["kind"]]
    metadata = content.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    return cluster.create(path_of(kind, namespace), content, dry_run=True)


@pytest.mark.parametrize("kind", API_KINDS.values(), ids=lambda kind: kind.kind)
def test_the_crd_is_established_and_structural(installed: Cluster, kind: ApiKind) -> None:
    by_type = conditions(installed.get(f"{CRDS}/{kind.plural}.{kind.group}").content)
    assert by_type["Established"] == "True"
    assert by_type["NamesAccepted"] == "True"
    assert by_type.get("NonStructuralSchema", "False") == "False"
    # an unapproved *.k8s.io group says so, and is served all the same
    assert by_type.get("KubernetesAPIApprovalPolicyConformant", "True") in ("True", "False")


@pytest.mark.parametrize("content", good_manifests(), ids=lambda content: content["metadata"]["name"])
def test_valid_objects_are_accepted(installed: Cluster, content: dict[str, Any]) -> None:
    answer = offer(installed, content)
    assert answer.ok, answer.message


@pytest.mark.parametrize(
    "content", [one for one in good_manifests() if "status" in one], ids=lambda content: content["metadata"]["name"]
)
def test_a_status_comes_back_as_it_was_written(installed: Cluster, content: dict[str, Any]) -> None:
    path = path_of(API_KINDS[content["kind"]], content["metadata"].get("namespace"))
    made = installed.create(path, {name: part for name, part in content.items() if name != "status"})
    assert made.ok, made.message
    at = f"{path}/{content['metadata']['name']}"
    try:
        answer = installed.replace(f"{at}/status", {**made.content, "status": content["status"]})
        assert answer.ok, answer.message
        assert installed.get(at).content["status"] == content["status"]
    finally:
        installed.delete(at)


def test_an_adopted_machine_has_no_port_for_reports(installed: Cluster) -> None:
    (content,) = (one for one in good_manifests() if one["metadata"]["name"] == "adopted")
    content["spec"]["guestReports"] = False
    assert offer(installed, content).ok
    content["spec"]["guestReports"] = True
    assert "guestReports needs start" in offer(installed, content).message


def test_every_example_is_accepted(installed: Cluster) -> None:
    refused = {}
    for source, content in examples():
        if content.get("kind") not in API_KINDS or decode(content).object is None:
            continue  # examples of mistakes
        unnamed = deepcopy(content)
        unnamed["metadata"].pop("namespace", None)
        answer = offer(installed, unnamed)
        if not answer.ok:
            refused[source] = answer.message
    assert refused == {}


BAD: list[tuple[str, str, Any, str]] = [
    ("DevicePool", "spec.driver", None, "spec.driver: Required"),
    ("DevicePool", "spec.drivers", "x", 'unknown field "spec.drivers"'),
    ("DevicePool", "spec.attributes.0", {"name": "a"}, "exactly one"),
    ("DevicePool", "spec.attributes.0", {"name": "a", "stringValue": "", "intValue": 0}, "exactly one"),
    ("DevicePool", "spec.attributes.1.name", "vendor", "Duplicate value"),
    ("DevicePool", "spec.attributes.1.intValue", "0", "must be of type integer"),
    ("DevicePool", "spec.attributes.2.quantityValue", "1GB", "must be an amount such as"),
    ("DevicePool", "spec.attributes.3.semVerValue", "1.8", "must be a version such as 1.8.2"),
    ("DevicePool", "spec.devices.1.name", "whole", "Duplicate value"),
    ("DevicePool", "spec.resources.0.blockSize", 0, "greater than or equal to 1"),
    ("DevicePool", "spec.resources.0.blockSize", "0.0Gi", "10Gi, and more than zero"),
    ("DevicePool", "spec.resources.0.capacity", "-1", "10Gi, and not negative"),
    ("DevicePool", "spec.devices.0.requests", {"": 1}, "1 to 253 characters"),
    (
        "DevicePool",
        "spec.devices.0.requests",
        {"memory": "1GB"},
        "spec.devices[0].requests.memory in body should match",
    ),
    ("DeviceClass", "spec.adminAccess", "yes", "must be of type boolean"),
    ("DeviceClass", "spec.configs.0.name", "A", "must be a name of lower-case letters, digits"),
    ("DeviceClaim", "spec.claims", [], "at least 1 items"),
    ("DeviceClaim", "spec.claims.0.requests.count", "0", "such as 2, 500m, 1.5G or 10Gi, and more than zero"),
    ("DeviceClaim", "spec.claims.0.requests.count", "1.5", "whole number"),
    ("DeviceClaim", "spec.claims.0.limits.count", 1, "must not be below its request"),
    ("DeviceClaim", "spec.claims.1.oneOf.0.limits", {"count": 0}, "at least 1"),
    ("DeviceClaim", "spec.claims.0.requests.memory", "30Gi", "must not be below its request"),
    ("DeviceClaim", "spec.claims.1.deviceClass", "gpu", "cannot be combined with other fields"),
    ("VfConfig", "spec.vlan", 4095, "less than or equal to 4094"),
    ("VfConfig", "spec.minTxRate", 2000, "must not be above maxTxRate"),
    ("VfConfig", "spec.linkState", "up", "Unsupported value"),
    ("VgpuConfig", "spec.profile", None, "spec.profile: Required"),
    ("VirtualMachine", "spec.cpu.use", "4001m", "use must be between min and max"),
    ("VirtualMachine", "spec.cpu.min", "9m", "min must be at least 10m"),
    ("VirtualMachine", "spec.cpu.max", 1025, "max must not be above 1024"),
    ("VirtualMachine", "spec.memory.use", "768Mi", "use must be min plus a multiple of slotSize"),
    ("VirtualMachine", "spec.memory.min", "513M", "min must be a multiple of 2Mi"),
    ("VirtualMachine", "spec.memory.method", "virtio-mem", "slotSize is required with method dimm"),
    ("VirtualMachine", "spec.start", {}, "a kernel is required without disks"),
    ("VirtualMachine", "spec.start.kernel", "/var/../etc/shadow", "must be an absolute path without"),
    ("VirtualMachine", "spec.start.disks.0.format", None, "format: Required"),
    ("VirtualMachine", "spec.adopt", {"qmpSocket": "/run/a.qmp"}, "exactly one of start and adopt"),
    ("VirtualMachine", "spec.nics.0.interface", None, "interface is required with backend tap"),
    ("VirtualMachine", "spec.nics.1.backend", "warm", "a machine can use only one warm setup"),
    ("VirtualMachine", "spec.claims.1", "train", "each claim can be named only once"),
    ("VirtualMachine", "spec.pciSlots", 1, "at least one for each claim"),
    ("VirtualMachineMigration", "spec.vmName", "../trainer", "must be a name of lower-case letters"),
    ("VirtualMachineMigration", "spec.vmName", None, "vmName: Required"),
]


def test_an_invalid_amount_has_one_message(installed: Cluster) -> None:
    """And not by expressions that fail on it, nor by a pattern."""
    claim, machine = good("DeviceClaim"), good("VirtualMachine")
    claim["spec"]["claims"] = [{"requests": {"count": "four", "memory": "10GB"}, "limits": {"memory": "12GB"}}]
    machine["spec"] |= {"cpu": {"min": "1", "max": "two"}, "memory": {"min": "1GB", "max": "2Gi"}}
    for content, count in ((claim, 3), (machine, 2)):
        answer = offer(installed, content)
        assert answer.status == 422
        causes = [cause["message"] for cause in answer.content["details"]["causes"]]
        assert len(causes) == count, causes
        assert all("must be an amount such as 2, 500m, 1.5G or 10Gi" in cause for cause in causes)


@pytest.mark.parametrize(("kind", "where", "value", "words"), BAD)
def test_invalid_objects_are_refused_with_a_message(
    installed: Cluster, kind: str, where: str, value: Any, words: str
) -> None:
    content = with_change(good(kind), where, value)
    answer = offer(installed, content)
    assert answer.status in (400, 422), answer.content
    assert words in answer.message
    assert decode(content).object is None


# -- life of a claim -----------------------------------------------------------------------------------------------


def test_status_is_a_subresource_and_fixes_the_spec_until_release(installed: Cluster) -> None:
    kind = API_KINDS["DeviceClaim"]
    path = path_of(kind, "team-a")
    claim = next(content for content in good_manifests() if content["metadata"]["name"] == "held")
    created = installed.create(path, claim)
    assert created.ok, created.message
    default = DEFAULT_STATUS["DeviceClaim"]
    assert created.content["status"] == default, "status is written through the subresource only"

    edited = with_change(created.content, "spec.claims.0.deviceClass", "other")
    edited = installed.replace(f"{path}/held", edited).content
    assert edited["spec"]["claims"][0]["deviceClass"] == "other", "a pending claim may be edited"

    allocated = installed.replace(f"{path}/held/status", edited | {"status": claim["status"]})
    assert allocated.ok, allocated.message
    assert allocated.content["status"] == claim["status"]

    refused = installed.replace(f"{path}/held", with_change(allocated.content, "spec.claims.0.deviceClass", "third"))
    assert refused.status == 422
    assert (
        "spec: Invalid value: the spec of an allocated claim cannot change; release the claim first" in refused.message
    )
    annotated = installed.replace(f"{path}/held", with_change(allocated.content, "metadata.annotations.note", "fine"))
    assert annotated.ok, annotated.message

    bad_status = with_change(annotated.content, "status.deviceStatuses.0.deviceIP", "10.9.9.9")
    assert "deviceIPs[0] must equal deviceIP" in installed.replace(f"{path}/held/status", bad_status).message

    released = installed.replace(f"{path}/held/status", annotated.content | {"status": {}})
    assert released.ok, released.message
    assert installed.replace(f"{path}/held", with_change(released.content, "spec.claims.0.deviceClass", "third")).ok
    assert installed.delete(f"{path}/held").ok


def test_discovery_tells_short_names_and_categories(installed: Cluster) -> None:
    for version in {kind.api_version for kind in API_KINDS.values()}:
        resources = {entry["name"]: entry for entry in installed.get(f"/apis/{version}").content["resources"]}
        for kind in (kind for kind in API_KINDS.values() if kind.api_version == version):
            entry = resources[kind.plural]
            assert entry.get("shortNames", []) == list(kind.short_names)
            assert entry["categories"] == ["devalloc"]
            assert entry["singularName"] == kind.singular
            assert entry["namespaced"] == kind.namespaced
            assert (f"{kind.plural}/status" in resources) == ("status" in kind.model.model_fields)


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def shown(cluster: Cluster, path: str) -> tuple[list[str], list[str], dict[str, list[Any]]]:
    """Headings, those of ``-o wide``, and the cells of each object by its name."""
    table = cluster.get(path, accept=TABLE).content
    columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
    rows = {row["cells"][0]: row["cells"] for row in table["rows"]}
    return [name for name, wide in columns if not wide], [name for name, wide in columns if wide], rows


def test_pools_are_shown_and_selected_by_their_node(installed: Cluster) -> None:
    pools = path_of(API_KINDS["DevicePool"])
    assert installed.create(pools, good("DevicePool")).ok
    try:
        narrow, wide, rows = shown(installed, pools)
        assert narrow == ["Name", "Node", "Driver", "Available", "Age"]
        assert wide == ["Node cordoned", "Cordoned"]
        assert rows["node-a-0000-08-00"][:3] == ["node-a-0000-08-00", "node-a", "gpu.devalloc.io"]
        for node, names in (("node-a", ["node-a-0000-08-00"]), ("node-b", [])):
            listed = installed.get(f"{pools}?fieldSelector=spec.nodeName%3D{node}").content["items"]
            assert [pool["metadata"]["name"] for pool in listed] == names
    finally:
        installed.delete(f"{pools}/node-a-0000-08-00")


def test_claims_show_what_they_hold_or_why_not(installed: Cluster) -> None:
    """As the allocator writes it: the columns are those that a user of kubectl reads."""
    claims, gpus = path_of(API_KINDS["DeviceClaim"], "team-a"), good("DevicePool")
    detail = {"deviceClass": "gpu", "constraints": "device.function == 'whole'"}
    for name, count in (("one", 1), ("many", 9)):
        spec = {"claims": [{**detail, "requests": {"count": count}}]}
        body = {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim", "metadata": {"name": name}}
        assert installed.create(claims, body | {"spec": spec}).ok
    try:
        listed = installed.get(claims).content["items"]
        pending = [item | {"kind": "DeviceClaim", "apiVersion": "devmgmtproto.k8s.io/v1alpha1"} for item in listed]
        device_class = {**good("DeviceClass"), "spec": {"driver": "gpu.devalloc.io"}}
        answer = solve_manifests([gpus, device_class, *pending])
        for change in (unit.changes[0] for unit in decide_claims(pending, answer, NOW, form=IN_CONDITIONS)):
            stored = installed.get(f"{claims}/{change.key.name}").content
            noted = {name: text for name, text in change.annotations.items() if text is not None}
            stored["metadata"]["annotations"] = noted
            stored = installed.replace(f"{claims}/{change.key.name}", stored).content
            assert installed.replace(f"{claims}/{change.key.name}/status", stored | {"status": change.status}).ok
        narrow, wide, rows = shown(installed, claims)
        assert narrow == ["Name", "Class", "Node", "Devices", "Reason", "Age"]
        assert wide == ["Group", "Priority", "Pinned to", "Prepared on", "Message"]
        assert rows["one"][1:5] == ["gpu", "node-a", "node-a-0000-08-00/whole", "Allocated"]
        assert rows["many"][1:5] == ["gpu", None, None, "NotEnoughDevices"]
        assert rows["many"][-1].startswith("no node has ")
    finally:
        for name in ("one", "many"):
            installed.delete(f"{claims}/{name}")


FIXED = [
    ("DevicePool", "spec.nodeName", "node-b", "nodeName and driver of a pool cannot change"),
    ("DevicePool", "spec.driver", "nic.devalloc.io", "nodeName and driver of a pool cannot change"),
    (
        "VirtualMachine",
        "spec.adopt",
        {"qmpSocket": "/run/devalloc/a.qmp"},
        "start cannot become adopt, nor adopt start",
    ),
]


@pytest.mark.parametrize(("kind", "where", "value", "words"), FIXED)
def test_what_an_object_is_known_by_never_changes(
    installed: Cluster, kind: str, where: str, value: Any, words: str
) -> None:
    body = good(kind)
    path = path_of(API_KINDS[kind], body["metadata"].get("namespace"))
    created = installed.create(path, body)
    assert created.ok, created.message
    name = f"{path}/{body['metadata']['name']}"
    try:
        answer = installed.replace(name, with_change(created.content, where, value))
        assert answer.status == 422
        assert words in answer.message
        assert installed.replace(name, with_change(created.content, "metadata.labels.note", "fine")).ok
    finally:
        installed.delete(name)


def test_no_other_kind_has_our_short_names(installed: Cluster) -> None:
    """kubectl looks a word up in all groups: one that a built-in kind has too would show that."""
    ours = {word for kind in API_KINDS.values() for word in kind.short_names}
    assert ours == {"dpool", "dclass", "dclaim", "vmachine", "vmmigration", "vmrs"}
    versions = [f"/apis/{g['preferredVersion']['groupVersion']}" for g in installed.get("/apis").content["groups"]]
    foreign = {kind.api_version for kind in API_KINDS.values()}
    for path in ("/api/v1", *(one for one in versions if one.removeprefix("/apis/") not in foreign)):
        for entry in installed.get(path).content["resources"]:
            taken = {entry["name"], entry["singularName"], *entry.get("shortNames", [])}
            assert not taken & ours, f"{path}: {entry['name']}"


# -- agreement -----------------------------------------------------------------------------------------------------


# What annotations say is judged by policies (test_policies), which may be there or not.
DIFFERENCES: list[tuple[str, str, Any, bool, str]] = [
    # kind, where, what stands there, whether decode() takes it, why the server does the opposite
    ("DeviceClass", "spec.Driver", "x", True, "malformed tags of the prototype are read leniently"),
    ("DeviceClass", "metadata.annotations", {"a": 1}, True, "annotations without quotes are read leniently"),
    ("DevicePool", "spec.resources.0.capacity", 1.5, True, "JSON numbers with a fraction are read by their text"),
    ("DevicePool", "metadata.labels", {"-": "x"}, True, "the syntax of labels is the server's own"),
    ("DevicePool", "spec.resources.0.capacity", "0.1n", False, "Kubernetes rounds, S4a refuses"),
    ("DevicePool", "spec.resources.0.capacity", "1e30", False, "Kubernetes caps, S4a refuses"),
    ("DevicePool", "spec.devices.0.requests", {"a\u0007": 1}, False, "rules see the keys of a map, patterns do not"),
    ("DeviceClaim", "spec.claims.0.limits.count", "8Ei", False, "Kubernetes caps, S4a refuses"),
    ("VirtualMachine", "spec.memory", {"min": "1Gi", "max": "7Ei"}, True, "no machine has as much; floats end there"),
    ("DeviceClaim", "status", "x", False, "a creation drops the status unread"),
]


@pytest.mark.parametrize(("kind", "where", "value", "ours", "why"), DIFFERENCES)
def test_these_differences_are_meant(
    installed: Cluster, kind: str, where: str, value: Any, ours: bool, why: str
) -> None:
    content = good(kind)
    if where == "spec.Driver":
        del content["spec"]["driver"]
    content = with_change(content, where, value)
    assert (decode(content).object is not None, offer(installed, content).ok) == (ours, not ours), why


WAYS = [
    "1",
    "2000m",
    "1500m",
    "1.0",
    "1.5k",
    "1.0005k",
    "1.5e1",
    "1.55e1",
    "0.5Ki",
    "0.1Ki",
    "57000000u",
    "1001n",
    "7Ei",
]
WAYS += ["15000000000n", "15000000001n", "12345678901234567", "9223372036854775807"]


@pytest.mark.parametrize("amount", WAYS)
def test_a_whole_number_is_one_however_it_is_written(installed: Cluster, amount: str) -> None:
    content = good("DeviceClaim")
    content["spec"]["claims"] = [{"requests": {"count": amount}}]
    assert offer(installed, content).ok == (decode(content).object is not None)


MEMORY: list[dict[str, Any]] = [
    {"min": "0.5Gi", "max": "1.5Gi"},
    {"min": "512.0Mi", "max": "1073741824000m"},
    {"min": "0.3Gi", "max": "1Gi"},
    {"min": "536870912001m", "max": "1Gi"},
    {"min": 536870912, "max": "1Gi", "use": "0.75Gi"},
    {"min": "0.5Gi", "max": "1.5Gi", "use": "0.75Gi", "method": "dimm", "slotSize": "0.125Gi"},
    {"min": "0.5Gi", "max": "1.5Gi", "use": "0.7Gi", "method": "dimm", "slotSize": "0.125Gi"},
    {"min": "0.5Gi", "max": "32.375Gi", "method": "dimm", "slotSize": "128Mi"},
    {"min": "0.5Gi", "max": "32.5Gi", "method": "dimm", "slotSize": "128Mi"},
    {"min": "0.5Gi", "max": "2Gi", "hugePages": "2Mi"},
    {"min": "0.5Gi", "max": "2Gi", "hugePages": "1Gi"},
    {"min": "1024Mi", "max": "2Gi", "hugePages": "1Gi"},
    {"min": "1Gi", "max": "2Gi", "use": "1.5Gi", "hugePages": "1Gi"},
    {"min": "1Gi", "max": "3Gi", "method": "dimm", "slotSize": "0.5Gi", "hugePages": "1Gi"},
    {"min": "1Gi", "max": "3Gi", "hugePages": "4Mi"},
]


@pytest.mark.parametrize("memory", MEMORY, ids=str)
def test_memory_is_judged_however_it_is_written(installed: Cluster, memory: dict[str, Any]) -> None:
    content = with_change(good("VirtualMachine"), "spec.memory", memory)
    answer = offer(installed, content)
    assert answer.ok == (decode(content).object is not None), answer.message
    assert "evaluating rule" not in answer.message


def meant(content: dict[str, Any], server: ApiAnswer) -> bool:
    """Whether decode() and the server differ on this object for one of the reasons above."""
    problems = decode(content).problems
    wrong = [problem for problem in problems if problem.is_error]
    if not wrong:
        lenient = any("read as" in problem.message or "is ignored" in problem.message for problem in problems)
        unquoted = 'must be of type integer,string: "number"' in server.message  # an amount such as 1.5
        return lenient or unquoted or "metadata" in server.message or "namespace" in server.message
    rounded = all("finer than one nano" in p.message or "beyond the range" in p.message for p in wrong)
    texts = ("printable", "must be an IPv4 or IPv6 address")  # a new rule would refuse objects that are there
    return rounded or all(
        p.path.startswith(("metadata.", "status")) or any(text in p.message for text in texts) for p in wrong
    )


def test_decode_and_the_server_agree_on_mutated_objects(installed: Cluster) -> None:
    random = Random("agreement")
    sources = [content for content in good_manifests() if content["metadata"].get("namespace") in (None, "team-a")]
    agreed: Counter[bool] = Counter()
    differ = []
    for _ in range(MUTATIONS):
        original = random.choice(sources)
        content = mutated(original, random)
        if (content.get("kind"), content.get("apiVersion")) != (original["kind"], original["apiVersion"]):
            continue  # another URL: nothing to compare
        path = path_of(API_KINDS[original["kind"]], original["metadata"].get("namespace"))
        decoded, server = decode(content), installed.create(path, content, dry_run=True)
        assert server.status in (201, 400, 422), server.content
        if (decoded.object is not None) == server.ok:
            agreed[server.ok] += 1
        elif not meant(content, server):
            differ.append(f"decode: {[str(p) for p in decoded.problems]}; server: {server.message or 'accepted'}")
    assert differ == []
    assert min(agreed[True], agreed[False]) > MUTATIONS // 20, "both verdicts are exercised"


def test_decode_and_the_server_agree_on_the_cases_of_the_solver(installed: Cluster) -> None:
    """Each object of ``tests/conformance/cases`` that the server could have."""
    documents = [document for one in case.load().values() for document in case.documents(one)]
    seen: set[str] = set()
    agreed: Counter[bool] = Counter()
    differ = []
    for document in documents:
        kind, metadata = API_KINDS.get(str(document.get("kind"))), document.get("metadata", {})
        if kind is None or document.get("apiVersion") != kind.api_version or "name" not in metadata:
            continue
        place = {"namespace": "default"} if kind.namespaced else {}  # theirs are not there
        noted = {name: text for name, text in metadata.items() if name in ("annotations", "labels")}
        content = {**document, "metadata": {**noted, **place, "name": "agreement"}}
        if (text := json.dumps(content, sort_keys=True)) in seen:
            continue
        seen.add(text)
        decoded, server = decode(content), offer(installed, content)
        if (decoded.object is not None) == server.ok:
            agreed[server.ok] += 1
        elif not meant(content, server):
            differ.append(f"decode: {[str(p) for p in decoded.problems]}; server: {server.message or 'accepted'}")
    assert differ == []
    assert agreed[True] > 100
    assert agreed[False] > 5


def test_decode_and_the_server_agree_on_mutated_statuses(installed: Cluster) -> None:
    random = Random("statuses")
    path = path_of(API_KINDS["DeviceClaim"], "team-a")
    held = next(content for content in good_manifests() if content["metadata"]["name"] == "held")
    stored = installed.create(path, held).content
    agreed: Counter[bool] = Counter()
    differ = []
    try:
        for _ in range(MUTATIONS // 3):
            status = mutated(held["status"], random)
            decoded = decode(held | {"status": status})
            server = installed.replace(f"{path}/held/status", stored | {"status": status}, dry_run=True)
            if (decoded.object is not None) == server.ok:
                agreed[server.ok] += 1
            elif not any("read as" in problem.message for problem in decoded.problems):
                differ.append(f"decode: {[str(p) for p in decoded.problems]}; server: {server.message or 'accepted'}")
    finally:
        installed.delete(f"{path}/held")
    assert differ == []
    assert min(agreed[True], agreed[False]) > MUTATIONS // 60, "both verdicts are exercised"
