"""ValidatingAdmissionPolicies as a class, before any cluster sees them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from devalloc.api import decode, meta
from devalloc.device_kinds import DEVICE_KINDS
from devalloc.install.chart import chart
from devalloc.install.manifests import WORKER, InstallOptions, render_manifests
from tools import reference

EVERYTHING = InstallOptions(publish="both", resource_claims=True, adoption=True, permits=True, neon=True)
VIRTUAL = {"adopt", "allocate", "prepare", "prioritize", "use-host-paths", "overcommit"}
"""Verbs that no API has, and that policies ask for: what they allow acts on the whole cluster."""
CHECKED = VIRTUAL | {"update"}
"""With those of an API: NeonVM's controller may update the status of its machines."""
CHECK = re.compile(r"authorizer\b(.*?)\.check\('([^']*)'\)", re.DOTALL)


def expressions(content: Any) -> list[str]:
    """All texts of an object, in which expressions are."""
    if isinstance(content, dict):
        return [text for each in content.values() for text in expressions(each)]
    if isinstance(content, list):
        return [text for each in content for text in expressions(each)]
    return [content] if isinstance(content, str) else []


def policies() -> list[dict[str, Any]]:
    return [one for one in render_manifests(EVERYTHING) if one["kind"] == "ValidatingAdmissionPolicy"]


@pytest.mark.parametrize(
    "kind", ["DaemonSet", "ClusterRole", "ValidatingAdmissionPolicy", "MutatingAdmissionPolicy", "NetworkPolicy"]
)
def test_the_guide_names_all_that_an_installation_contains(kind: str) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "installed.md").read_text()
    named = re.findall(r"`(devalloc-[a-z*-]+)`", guide)
    names = [one["metadata"]["name"] for one in render_manifests(EVERYTHING) if one["kind"] == kind]
    assert names
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in named)] == []


def test_a_node_may_name_pools_after_parents_of_each_kind_that_is_no_pci_function() -> None:
    (policy,) = (one for one in policies() if one["metadata"]["name"] == "devalloc-node-pools")
    (named,) = (one["expression"] for one in policy["spec"]["variables"] if one["name"] == "kind")
    kinds = "|".join(kind.name for kind in DEVICE_KINDS.values() if kind.parents)
    assert named == f"'-({kinds})-'"


def test_virtual_verbs_are_asked_for_the_whole_cluster() -> None:
    """In its own namespace everybody has them who has all verbs there, such as cluster-admin by a RoleBinding."""
    checks = [(where, verb) for one in policies() for text in expressions(one) for where, verb in CHECK.findall(text)]
    assert {verb for _, verb in checks} == CHECKED
    assert [where for where, _ in checks if "namespace" in where] == []


def test_the_chart_asks_for_them_in_the_same_way() -> None:
    text = chart("1.0")["templates/policies.yaml"].replace("''", "'")  # as texts in quotes have it
    checks = CHECK.findall(text)
    assert {verb for _, verb in checks} == CHECKED
    assert [where for where, _ in checks if "namespace" in where] == []


@pytest.mark.parametrize("publish", ["pools", "both"])
def test_roles_with_virtual_verbs_are_bound_in_the_whole_cluster(publish: Any) -> None:
    """Else they would give nothing."""
    is_both = publish == "both"
    objects = render_manifests(InstallOptions(publish=publish, resource_claims=is_both, adoption=is_both, permits=True))
    special = {
        one["metadata"]["name"]
        for one in objects
        if one["kind"] == "ClusterRole"
        for rule in one["rules"]
        if VIRTUAL & set(rule["verbs"])
    }
    bound = {one["roleRef"]["name"] for one in objects if one["kind"] == "ClusterRoleBinding"}
    for one in objects:
        assert one["kind"] != "Role" or not any(VIRTUAL & set(rule["verbs"]) for rule in one["rules"])
        assert one["kind"] != "RoleBinding" or one["roleRef"]["kind"] == "Role"
    assert {"devalloc-controller", "devalloc-node-pools"} <= bound & special
    by_admins = special - bound
    assert by_admins <= {"devalloc-prioritize", "devalloc-host-paths", "devalloc-overcommit"}, (
        "an admin binds these to people"
    )


def test_no_role_that_people_have_anyway_gives_them() -> None:
    for one in render_manifests(EVERYTHING, ["rbac"]):
        labels = one["metadata"].get("labels", {})
        if any(name.startswith("rbac.authorization.k8s.io/aggregate-to-") for name in labels):
            verbs = {verb for rule in one["rules"] for verb in rule["verbs"]}
            assert not verbs & VIRTUAL, one["metadata"]["name"]


@pytest.mark.parametrize("publish", ["slices", "pools", "both"])
def test_an_admin_can_keep_privileged_pods_off_the_control_plane(publish: Any) -> None:
    resource_claims = publish == "both"
    for one in render_manifests(InstallOptions(publish=publish, resource_claims=resource_claims, workers_only=True)):
        if one["kind"] == "DaemonSet":
            affinity = one["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            for term in affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
                assert WORKER in term["matchExpressions"], one["metadata"]["name"]


def test_editors_of_a_namespace_create_machines_only_if_an_admin_allows_it() -> None:
    roles = {
        one["metadata"]["name"]: one for one in render_manifests(EVERYTHING, ["rbac"]) if one["kind"] == "ClusterRole"
    }
    written = {
        name
        for name, one in roles.items()
        for rule in one["rules"]
        if "virtualmachines" in rule.get("resources", ()) and "create" in rule["verbs"]
    }
    assert written == {"devalloc-machines", "devalloc-controller"}, "and the controller makes those of replica sets"
    edit = "rbac.authorization.k8s.io/aggregate-to-edit"
    assert edit not in roles["devalloc-machines"]["metadata"].get("labels", {})
    options = InstallOptions(machines_in_edit=True)
    roles = {
        one["metadata"]["name"]: one for one in render_manifests(options, ["rbac"]) if one["kind"] == "ClusterRole"
    }
    assert roles["devalloc-machines"]["metadata"]["labels"][edit] == "true"


# -- warnings of names -------------------------------------------------------------------------------------------------

WARNED = {
    "deviceclaims": "DeviceClaim",
    "devicepools": "DevicePool",
    "virtualmachines": "VirtualMachine",
    "resourceclaims": "ResourceClaim",
    "nodes": "Node",
    "namespaces": "Namespace",
    "resourcequotas": "ResourceQuota",
}


def literal(variable: str) -> Any:
    """What a variable of the policy lists. Lists and maps of texts are written as in Python."""
    (policy,) = [one for one in policies() if one["metadata"]["name"] == "devalloc-names"]
    (text,) = [each["expression"] for each in policy["spec"]["variables"] if each["name"] == variable]
    return ast.literal_eval(text.removesuffix("[request.resource.resource]"))


@pytest.mark.parametrize("place", ["annotations", "labels"])
def test_the_policy_that_warns_knows_the_names_that_the_code_knows(place: meta.MetadataField) -> None:
    by_resource = {resource: list(decode.key_names(kind, place)) for resource, kind in WARNED.items()}
    by_users = {resource: list(decode.key_names(kind, place, by_users=True)) for resource, kind in WARNED.items()}
    assert literal(f"known{place.capitalize()}") == by_resource
    assert literal(f"users{place.capitalize()}") == by_users


def test_the_names_that_the_policy_knows_are_generated() -> None:
    assert reference.NAMES_POLICY.read_text() == reference.names_policy(), "generate it with: python -m tools.reference"


def test_the_policy_that_warns_knows_the_values_that_the_code_knows() -> None:
    labels = [each for each in decode.METADATA_KEYS if each.place == "labels" and each.values]
    assert literal("values") == {each.name: list(each.values) for each in labels if {*WARNED.values()} & {*each.kinds}}


def test_every_kind_with_names_of_its_own_is_looked_at() -> None:
    kinds = {kind for each in decode.METADATA_KEYS if each.by_users for kind in each.kinds}
    assert kinds <= set(WARNED.values())
    (policy,) = [one for one in policies() if one["metadata"]["name"] == "devalloc-names"]
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert {resource for rule in rules for resource in rule["resources"]} == set(WARNED)


def test_what_only_warns_keeps_nothing_from_being_written() -> None:
    """Nodes and namespaces are written by the whole cluster."""
    bindings = {
        one["metadata"]["name"]: one["spec"]["validationActions"]
        for one in render_manifests(EVERYTHING, ["policies"])
        if one["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    for one in policies():
        name = one["metadata"]["name"]
        if name in ("devalloc-names", "devalloc-quotas"):
            assert (bindings[name], one["spec"]["failurePolicy"]) == (["Warn", "Audit"], "Ignore")
        else:
            assert bindings[name] == ["Deny"], name
            rules = one["spec"]["matchConstraints"]["resourceRules"]
            assert not {"nodes", "namespaces", "resourcequotas"} & {
                each for rule in rules for each in rule["resources"]
            }


def test_the_guide_names_all_that_people_write() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "kubernetes-claims.md").read_text()
    table = guide[guide.index("These are the names that people write:") :].split("\n\n")[1]
    rows = {cells[1].strip().removesuffix("s"): cells[2:] for cells in (line.split("|") for line in table.splitlines())}
    for kind in WARNED.values():
        for place, cell in zip(("annotations", "labels"), rows.get(kind, ["", ""]), strict=False):
            for name in decode.key_names(kind, place, by_users=True):  # type: ignore[arg-type]
                assert re.search(rf"`(devalloc\.io/)?{name.partition('/')[2]}[`:]", cell), (kind, name)


# -- who is who over TLS -----------------------------------------------------------------------------------------------


def test_prometheus_verifies_the_receiver_of_its_token() -> None:
    everything = render_manifests(replace(EVERYTHING, service_monitor=True, namespace="elsewhere"))
    (monitor,) = [one for one in everything if one["kind"] == "ServiceMonitor"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "devalloc-controller.elsewhere.svc"
    (controller,) = [one for one in everything if one["kind"] == "Deployment"]
    (tls,) = [each["secret"] for each in controller["spec"]["template"]["spec"]["volumes"] if each["name"] == "tls"]
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": tls["secretName"], "key": "ca.crt"}
    assert endpoint["authorization"]["credentials"]["name"] == "devalloc-metrics-token"
    bound = [
        one
        for one in everything
        if one["kind"] == "ClusterRoleBinding" and one["roleRef"]["name"] == "devalloc-metrics"
    ]
    assert [one["subjects"][0]["namespace"] for one in bound] == ["elsewhere"]


def test_nothing_that_is_shipped_leaves_tls_unverified() -> None:
    folder = Path(__file__).parents[3]
    for path in [*folder.glob("deploy/**/*.yaml"), *folder.glob("examples/**/*.yaml")]:
        assert not re.search(r"insecureSkipVerify|bearerTokenFile", path.read_text()), path


def test_the_tests_that_the_guide_to_security_names_are_there() -> None:
    root = Path(__file__).parents[3]
    rows = re.findall(
        r"^\| (\d+) \| (.+) \| (.*) \| (.+) \|$", (root / "docs" / "security.md").read_text(), re.MULTILINE
    )
    assert {int(number) for number, *_ in rows} == set(range(1, 13))
    for _, finding, tests, state in rows:
        named = re.findall(r"`(tests/[^`:]+\.py)(?:::(test_\w+))?`", tests)
        assert named or "said [above]" in state, finding
        assert not state.startswith("open"), finding
        for path, test in named:
            text = (root / path).read_text()
            assert not test or re.search(rf"^ *def {test}\(", text, re.MULTILINE), (path, test)
