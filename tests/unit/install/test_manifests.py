"""What is installed on a cluster, before any cluster sees it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.install import manifests
from devalloc.install import manifests as module
from devalloc.install.manifests import (
    PARTS,
    PUBLISH,
    InstallOptions,
    every_option,
    object_path,
    part_of,
    render_manifests,
)
from devalloc.version import VERSION
from devalloc_node.kube import credentials

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy" / "node" / "systemd"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pods(options: InstallOptions) -> dict[str, dict[str, Any]]:
    """Specs of pods, by what makes them."""
    workloads = [one for one in render_manifests(options) if one["kind"] in ("Deployment", "DaemonSet")]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in workloads}


def texts(content: Any) -> list[str]:
    if isinstance(content, dict):
        return [text for each in content.values() for text in texts(each)]
    if isinstance(content, list):
        return [text for each in content for text in texts(each)]
    return [content] if isinstance(content, str) else []


# -- what there is -----------------------------------------------------------------------------------------------------


def test_a_node_that_publishes_slices_needs_neither_crds_nor_a_controller() -> None:
    kinds = {one["kind"] for one in render_manifests(InstallOptions(publish="slices"))}
    assert not kinds & {"CustomResourceDefinition", "Deployment"}
    assert list(pods(InstallOptions(publish="slices"))) == ["devalloc-node"]


def test_no_role_may_publish_slices_if_pools_are_published() -> None:
    rules = [rule for one in render_manifests(InstallOptions(publish="pools")) for rule in one.get("rules", ())]
    verbs = {verb for rule in rules if "resourceslices" in rule.get("resources", ()) for verb in rule["verbs"]}
    assert verbs == {"list", "delete"}, "what was published before is taken back"
    assert list(pods(InstallOptions(publish="pools"))) == [
        "devalloc-controller",
        "devalloc-node-pools",
        "devalloc-node-host",
    ]


@pytest.mark.parametrize("publish", PUBLISH)
def test_the_order_is_that_of_creation(publish: Any) -> None:
    """Who runs is confined before it starts; what is in a namespace, or of a kind, comes after that."""
    parts = [part_of(one) for one in render_manifests(InstallOptions(publish=publish))]
    assert parts == sorted(parts, key=PARTS.index)
    assert parts[0] == "namespace"


def test_alerts_link_to_the_page_that_an_admin_names() -> None:
    options = InstallOptions(runbooks="https://docs.example.com/operations.html")
    (rules,) = (one for one in render_manifests(options) if one["kind"] == "PrometheusRule")
    alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
    links = [alert["annotations"]["runbook_url"] for alert in alerts]
    assert len(links) > 10
    assert {link.partition("#")[0] for link in links} == {"https://docs.example.com/operations.html"}
    assert all(link.partition("#")[2] for link in links)
    assert not [one for one in render_manifests(InstallOptions()) if one["kind"] == "PrometheusRule"]


@pytest.mark.parametrize(
    "address", ["docs/operations.md", "https://", "https://a b", "file:///etc/passwd", "javascript:x"]
)
def test_an_address_that_no_alert_can_link_to_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"runbooks .* must be an address such as https://docs\.example\.com"):
        render_manifests(InstallOptions(runbooks=address))


def test_parts_add_up_to_the_whole() -> None:
    options = InstallOptions(service_monitor=True, runbooks="https://docs.example.com/operations.html")
    whole = render_manifests(options)
    parts = [one for part in PARTS for one in render_manifests(options, [part])]
    assert parts == whole


@pytest.mark.parametrize("publish", PUBLISH)
def test_every_object_has_the_label_by_which_it_is_found_again(publish: Any) -> None:
    monitor = publish != "slices"
    for one in render_manifests(InstallOptions(publish=publish, service_monitor=monitor)):
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "devalloc", object_path(one)


@pytest.mark.parametrize("publish", PUBLISH)
def test_so_has_every_pod_which_is_still_selected_as_before(publish: Any) -> None:
    """The selector of a Deployment or DaemonSet cannot be changed on a cluster."""
    for one in render_manifests(InstallOptions(publish=publish)):
        if one["kind"] in ("Deployment", "DaemonSet"):
            name = {"app.kubernetes.io/name": one["metadata"]["name"]}
            assert one["spec"]["template"]["metadata"]["labels"] == name | {"app.kubernetes.io/part-of": "devalloc"}
            assert one["spec"]["selector"] == {"matchLabels": name}


# -- what is set -------------------------------------------------------------------------------------------------------


def test_another_namespace_leaves_no_word_of_the_usual_one() -> None:
    objects = render_manifests(InstallOptions(namespace="devices"))
    assert not [text for text in texts(objects) if "devalloc-system" in text]
    accounts = {s["namespace"] for one in objects for s in one.get("subjects", ())}
    assert accounts == {"devices"}
    assert any('"system:serviceaccount:devices:devalloc-node"' in text for text in texts(objects))


def test_images_have_prefix_and_tag() -> None:
    by_name = pods(InstallOptions(image_prefix="registry.example.com:5000/team/", version="1.2.3"))
    images = {pod["containers"][0]["image"] for pod in by_name.values()}
    prefix = "registry.example.com:5000/team/devalloc"
    assert images == {f"{prefix}-controller:1.2.3", f"{prefix}-node:1.2.3"}


@pytest.mark.parametrize(
    ("prefix", "full"),
    [
        ("registry.example.com/team", "registry.example.com/team/"),
        ("registry.example.com:5000", "registry.example.com:5000/"),
        ("localhost", "localhost/"),
        ("localhost/", "localhost/"),
        ("registry.example.com/team-", "registry.example.com/team-"),  # no path ends so
    ],
)
def test_a_prefix_that_is_a_path_ends_with_a_slash(prefix: str, full: str) -> None:
    """As in `make oci-images ARGS='--prefix registry.example.com/team'`."""
    images = {pod["containers"][0]["image"] for pod in pods(InstallOptions(image_prefix=prefix, version="1")).values()}
    assert images == {f"{full}devalloc-controller:1", f"{full}devalloc-node:1"}


def test_the_tag_is_the_version_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VERSION", "1.0.0+local.1")
    assert pods(InstallOptions())["devalloc-node"]["containers"][0]["image"].endswith("/devalloc-node:1.0.0_local.1")


def test_the_images_of_the_files_are_of_this_version() -> None:
    """For those who apply the folder with kubectl."""
    objects = manifests.render_folder(ROOT / "deploy")
    containers = [
        one["spec"]["template"]["spec"]["containers"][0] for one in objects if "template" in one.get("spec", {})
    ]
    assert {each["image"].partition(":")[2] for each in containers} == {VERSION}, "write them anew with: make chart"


def test_another_kubelet_folder_is_an_option_of_the_plugin_and_mounted() -> None:
    by_name = pods(InstallOptions(kubelet_dir="/var/lib/k0s/kubelet/"))
    pod = by_name["devalloc-node"]
    assert "--kubelet-dir=/var/lib/k0s/kubelet" in pod["containers"][0]["args"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
    assert mounts["kubelet-plugins"] == paths["kubelet-plugins"] == "/var/lib/k0s/kubelet/plugins"
    assert "/var/lib/kubelet" not in str(by_name)
    assert "--kubelet-dir" not in str(by_name["devalloc-node-pools"])


def fencing_objects(options: InstallOptions) -> list[str]:
    return [object_path(one) for one in render_manifests(options) if one["metadata"]["name"].endswith("-fencing")]


def test_a_fencing_program_comes_with_its_secret_and_its_right_and_with_nothing_else() -> None:
    options = InstallOptions(fencing_secret="bmc", namespace="devices")
    pod = pods(options)["devalloc-controller"]
    (container,) = pod["containers"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "fencing")
    (mount,) = (one for one in container["volumeMounts"] if one["name"] == "fencing")
    assert volume["secret"] == {"secretName": "bmc", "defaultMode": 0o555}, "executable, and required"
    assert mount["readOnly"]
    assert f"--fencing-command={mount['mountPath']}/power-off" in container["args"]
    assert len(fencing_objects(options)) == 4, "role and policy, each with its binding"
    plain = pods(replace(options, fencing_secret=""))
    assert "fencing" not in str(plain)
    assert fencing_objects(replace(options, fencing_secret="")) == []
    others = pods(options)
    assert {name: pod for name, pod in others.items() if name != "devalloc-controller"} == {
        name: pod for name, pod in plain.items() if name != "devalloc-controller"
    }, "only the controller sees the password"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (InstallOptions(namespace='x" || true || "'), "namespace"),
        (InstallOptions(namespace="Upper"), "namespace"),
        (InstallOptions(image_prefix="a b/"), "image prefix"),
        (InstallOptions(image_prefix="http://localhost/"), "image prefix"),
        (InstallOptions(image_prefix="localhost//"), "image prefix"),
        (InstallOptions(image_prefix="/team/"), "image prefix"),
        (InstallOptions(image_prefix="localhost/team:1"), "image prefix"),
        (InstallOptions(image_prefix="localhost/Team"), "image prefix"),
        (InstallOptions(version="a/b"), "tag"),
        (InstallOptions(fencing_secret="../x"), "fencing secret"),
        (InstallOptions(kubelet_dir="var/lib"), "kubelet dir"),
        (InstallOptions(kubelet_dir="/var/../etc"), "kubelet dir"),
    ],
)
def test_what_makes_no_sense_is_refused(options: InstallOptions, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what} '"):
        render_manifests(options)


def test_there_is_no_monitor_where_there_is_no_controller() -> None:
    with pytest.raises(ValueError, match="no controller"):
        render_manifests(InstallOptions(publish="slices", service_monitor=True))
    with pytest.raises(ValueError, match="no controller"):
        render_manifests(InstallOptions(publish="slices", permits=True))
    with pytest.raises(ValueError, match="no controller to read NeonVM"):
        render_manifests(InstallOptions(publish="slices", neon=True))
    with pytest.raises(ValueError, match="no controller"):
        render_manifests(InstallOptions(publish="slices", fencing_secret="bmc"))
    with pytest.raises(ValueError, match="no VirtualMachines"):
        render_manifests(InstallOptions(publish="slices", machines_in_edit=True))


@pytest.mark.parametrize("publish", ["slices", "pools"])
def test_nodes_are_set_aside_only_where_their_labels_count(publish: Any) -> None:
    with pytest.raises(ValueError, match="need publish both"):
        render_manifests(InstallOptions(publish=publish, resource_claims=True))


def test_each_label_of_a_node_is_meant_for_one_daemonset() -> None:
    """Of two a node would publish its devices twice."""
    wanted: dict[str, list[str]] = {"pools": [], "host": [], "set-aside": [], "none": [], "": []}
    for name, pod in pods(InstallOptions(resource_claims=True)).items():
        if name == "devalloc-controller":
            continue
        required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ((expression,),) = [term["matchExpressions"] for term in required["nodeSelectorTerms"]]
        assert expression["key"] == "devalloc.io/publish"
        for label in wanted:
            if (label in expression["values"]) == (expression["operator"] == "In"):
                wanted[label].append(name)
    assert wanted == {
        "pools": ["devalloc-node-pools"],
        "host": ["devalloc-node-host"],
        "set-aside": ["devalloc-node-set-aside"],
        "none": [],
        "": ["devalloc-node"],
    }


# -- what pods may -----------------------------------------------------------------------------------------------------


def test_the_controller_may_nothing_on_its_host() -> None:
    pod = pods(InstallOptions())["devalloc-controller"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] != 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    confined = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == confined
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


@pytest.mark.parametrize("name", ["devalloc-node", "devalloc-node-pools", "devalloc-node-set-aside"])
def test_a_nodes_pod_sees_of_its_host_what_is_named_here(name: str) -> None:
    pod = pods(InstallOptions(resource_claims=True))[name]
    (container,) = pod["containers"]
    paths = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    common = {"/dev", "/sys", "/lib/modules", "/run/udev", "/run/devalloc", "/var/lib/devalloc"}
    kubelet = {"/var/run/cdi", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry"}
    assert paths == (common if name == "devalloc-node-pools" else common | kubelet)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "ports" not in container, "with the host's network each port of a pod is one of the host"


def test_a_pod_that_keeps_a_hosts_access_sees_one_folder_of_it_and_may_nothing() -> None:
    pod = pods(InstallOptions())["devalloc-node-host"]
    (container,) = pod["containers"]
    assert [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume] == [
        "/run/devalloc/cluster"
    ]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "privileged" not in context
    assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()


def test_service_accounts_give_tokens_to_pods_of_ours_only() -> None:
    accounts = [one for one in render_manifests(InstallOptions()) if one["kind"] == "ServiceAccount"]
    assert {one["automountServiceAccountToken"] for one in accounts} == {False}
    mounted = {name: pod["automountServiceAccountToken"] for name, pod in pods(InstallOptions()).items()}
    assert mounted.pop("devalloc-node-host") is False, "its own is good for an hour, as its volume says"
    assert set(mounted.values()) == {True}


# -- rights ------------------------------------------------------------------------------------------------------------


def test_no_role_has_a_wildcard() -> None:
    """Wildcards grant what does not exist yet."""
    for one in render_manifests(InstallOptions(), ["rbac"]):
        for rule in one.get("rules", ()):
            granted = [*rule.get("verbs", ()), *rule.get("resources", ()), *rule.get("apiGroups", ())]
            assert "*" not in granted, object_path(one)


def test_no_role_of_ours_reads_secrets_or_changes_rights() -> None:
    for one in render_manifests(InstallOptions(), ["rbac"]):
        resources = {resource for rule in one.get("rules", ()) for resource in rule.get("resources", ())}
        assert not resources & {"secrets", "pods/exec", "serviceaccounts/token", "clusterroles", "roles"}, object_path(
            one
        )


def test_editors_of_a_namespace_write_no_statuses_and_have_no_virtual_verbs() -> None:
    roles = {
        one["metadata"]["name"]: one
        for one in render_manifests(InstallOptions(), ["rbac"])
        if one["kind"] == "ClusterRole"
    }
    for name in ("devalloc-view", "devalloc-edit", "devalloc-fleet"):
        for rule in roles[name]["rules"]:
            assert not [resource for resource in rule["resources"] if "/" in resource], name
            assert not {"allocate", "prepare", "prioritize", "use-host-paths", "overcommit"} & set(rule["verbs"]), name


def test_the_proxy_of_neons_agents_is_where_they_look_and_may_do_nothing_else() -> None:
    options = InstallOptions(permits=True, neon=True, neon_agents="10.1.0.0/16 10.2.0.0/16", neon_scheduler="ours")
    made = [one for one in render_manifests(options) if one["metadata"]["name"] == "devalloc-permit-proxy"]
    (deployment,) = (one for one in made if one["kind"] == "Deployment")
    assert deployment["metadata"]["namespace"] == "kube-system"
    assert deployment["spec"]["template"]["metadata"]["labels"]["name"] == "ours"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "DEVALLOC_NEON_AGENTS", "value": "10.1.0.0/16 10.2.0.0/16"} in container["env"]
    (role,) = (one for one in made if one["kind"] == "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": ["devalloc.io"], "resources": ["virtualmachines/permits"], "verbs": ["proxy"]}
    ]
    without = render_manifests(InstallOptions(permits=True, neon=True))
    assert not [one for one in without if one["metadata"].get("namespace") == "kube-system"]


@pytest.mark.parametrize(
    "options",
    [InstallOptions(neon_agents="10.1.0.0/16", neon=True), InstallOptions(neon_agents="10.1.0.0/16", permits=True)],
)
def test_neons_agents_need_the_permit_server_and_their_machines(options: InstallOptions) -> None:
    with pytest.raises(ValueError, match="neon agents need neon and permits"):
        render_manifests(options)


# -- where it comes from -----------------------------------------------------------------------------------------------


def test_all_that_can_be_installed_has_every_switch_and_part() -> None:
    """What is installed, removed and packaged is found by it."""
    every = every_option()
    assert [each.name for each in fields(every) if getattr(every, each.name) in (False, "")] == ["image_prefix"]
    for publish in PUBLISH:
        render_manifests(every_option(publish))


def test_the_wheel_holds_all_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for origin, place in included.items():
        if not place.startswith("devalloc/install/"):  # tests/unit/cli/test_examples_verb.py
            continue
        shutil.copytree(ROOT / origin, tmp_path / place)
    options = [*(InstallOptions(publish=publish) for publish in PUBLISH), *map(every_option, PUBLISH)]
    expected = [render_manifests(each) for each in options]
    packaged = tmp_path / "devalloc" / "install" / "data"
    monkeypatch.setattr(module, "source_folder", lambda: packaged)
    assert [render_manifests(each) for each in options] == expected


def test_the_crds_are_all_of_crds() -> None:
    (content,) = manifests.load_documents(ROOT / "crds" / "Kustomization")
    assert content["resources"] == sorted(path.name for path in (ROOT / "crds").glob("*.yaml"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("namePrefix: x-", "namePrefix is not supported"),
        ("labels: [{pairs: {a: b}, includeSelectors: true}]", "only pairs"),
        ("patches: [{path: other.yaml, target: {kind: A, name: a}}]", "only an inline patch"),
        ("patches: [{target: {kind: A, name: b}, patch: '[]'}]", "no A b to patch"),
        ("patches: [{target: {kind: A, name: a}, patch: '[{op: remove, path: /kind}]'}]", "remove of /kind"),
        ("patches: [{target: {kind: A, name: a}, patch: '[{op: replace, path: /x, value: 1}]'}]", "replace of /x"),
    ],
)
def test_what_is_not_known_of_kustomize_is_an_error(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: A\nmetadata: {name: a}\n")
    (tmp_path / "kustomization.yaml").write_text(f"resources: [a.yaml]\n{text}\n")
    with pytest.raises(ValueError, match=what):
        manifests.render_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kind: A\nkind: B\n", "duplicate|twice|already"),
        ("kind: [A\n", "not valid YAML"),
        ("a: &a [x]\nb: *c\n", "anchor .c., which does not exist"),
    ],
)
def test_a_file_that_the_yaml_reader_refuses_is_an_error_with_its_place(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.yaml: line \d: .*({what})"):
        manifests.load_documents(tmp_path / "a.yaml")


# -- services of hosts -------------------------------------------------------------------------------------------------


def settings_of(unit: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.read_text().splitlines() if re.match(r"\w+=", line))


OWN_MOUNTS = re.compile(
    r"Private(?!Network)|Protect(?!Hostname|Clock)|ProcSubset|Read|Inaccessible|Bind|Root|TemporaryFileSystem|Mount|ExecPaths|NoExec"
)
"""Each of these options gives a service a mount namespace."""


@pytest.mark.parametrize("unit", sorted(UNITS.iterdir()), ids=lambda path: path.stem)
def test_a_service_of_a_host_may_no_more_than_it_needs(unit: Path) -> None:
    settings = settings_of(unit)
    for name in (
        *("NoNewPrivileges", "LockPersonality", "MemoryDenyWriteExecute", "ProtectHostname"),
        *("RestrictRealtime", "RestrictSUIDSGID"),
    ):
        assert settings[name] == "yes", name
    assert (settings["UMask"], settings["SystemCallArchitectures"]) == ("0077", "native")
    refused = {"@clock", "@cpu-emulation", "@debug", "@keyring", "@module", "@obsolete", "@raw-io", "@reboot", "@swap"}
    assert settings["SystemCallFilter"].startswith("~")
    assert refused <= set(settings["SystemCallFilter"].lstrip("~").split())


@pytest.mark.parametrize("name", ["devalloc", "devalloc-node"])
def test_a_plugin_mounts_in_the_hosts_namespace_and_has_what_binding_takes(name: str) -> None:
    settings = settings_of(UNITS / f"{name}.service")
    assert not [name for name in settings if OWN_MOUNTS.match(name)], "machines would not see what it mounts for them"
    assert "ProtectClock" not in settings, "it lets a service open no device but the clock"
    assert not [name for name in settings if name.startswith("Device")]
    assert {"net", "mnt"} <= set(settings["RestrictNamespaces"].split())
    assert settings["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"]
    assert settings["CapabilityBoundingSet"].startswith("~")
    assert not set(settings["CapabilityBoundingSet"].lstrip("~").split()) & {
        *("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_CHOWN", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_RESOURCE"),
        *("CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE", "CAP_KILL", "CAP_IPC_LOCK", "CAP_SYS_NICE", "CAP_NET_BIND_SERVICE"),
    }


def test_the_unit_that_powers_guests_down_has_no_network_and_no_devices() -> None:
    settings = settings_of(UNITS / "devalloc-guests.service")
    for name in ("PrivateDevices", "PrivateNetwork", "ProtectKernelTunables", "ProtectControlGroups", "ProtectClock"):
        assert settings[name] == "yes", name
    assert settings["RestrictAddressFamilies"] == "AF_UNIX"
    assert "CAP_SYS_ADMIN" not in settings["CapabilityBoundingSet"]


EXPOSURE = {"devalloc": 6.2, "devalloc-node": 6.2, "devalloc-guests": 2.6}
"""What `systemd-analyze security` may give each at most, from 0 (safe) to 10."""


@pytest.mark.parametrize("unit", sorted(UNITS.iterdir()), ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_a_service_and_rates_it_no_worse(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on this machine")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/devalloc/bin/devalloc", "/bin/true"))  # which need not be installed
    verified = subprocess.run([program, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    words = ["security", "--offline=true", "--no-pager", f"--threshold={round(10 * EXPOSURE[unit.stem])}", copy]
    rated = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout.splitlines()[-1]


def test_a_service_of_a_host_finds_what_the_pod_beside_it_keeps() -> None:
    (container,) = pods(InstallOptions())["devalloc-node-host"]["containers"]
    _, folder, _ = container["args"]
    unit = (UNITS / "devalloc-node.service").read_text()
    assert f"--kubeconfig {folder}/{credentials.KUBECONFIG} " in unit
    assert f"EnvironmentFile=-{folder}/{credentials.ENVIRONMENT}\n" in unit


@pytest.mark.parametrize("name", ["devalloc", "devalloc-node"])
def test_a_service_of_a_host_takes_options_from_a_file_of_its_name(name: str) -> None:
    assert f"EnvironmentFile=-/etc/default/{name}\n" in (UNITS / f"{name}.service").read_text()


def test_probes_have_a_port_of_their_own_that_no_one_but_the_kubelet_reaches() -> None:
    objects = render_manifests(InstallOptions())
    (controller,) = [one for one in objects if one["kind"] == "Deployment"]
    container = controller["spec"]["template"]["spec"]["containers"][0]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f"--health-listen=0.0.0.0:{ports['health']}" in container["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "health", probe
        assert "scheme" not in container[probe]["httpGet"]
    policies = [one for one in objects if one["kind"] == "NetworkPolicy"]
    allowed = {port["port"] for one in policies for rule in one["spec"].get("ingress", ()) for port in rule["ports"]}
    assert policies
    assert not allowed & {"health", ports["health"]}
