"""The manifests of an installation: the objects of ``deploy/`` with the chosen options.

Kustomize folders are rendered here, so that the installation does not need kustomize. It supports resources, JSON
patches (RFC 6902) and labels. Anything else in a ``kustomization.yaml`` is an error; a test compares the result with
kubectl's.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from devalloc.api.yaml_reader import YamlError, read_yaml
from devalloc.packaged_files import packaged_path
from devalloc.version import VERSION

Object = dict[str, Any]

_NAMES = ("kustomization.yaml", "Kustomization")
_FIELDS = {"apiVersion", "kind", "resources", "patches", "labels"}


def render_folder(folder: Path) -> list[Object]:
    """The objects of a folder, in the order of its resources. Raises ValueError for unsupported content, and OSError
    for missing files."""
    path = next((folder / name for name in _NAMES if (folder / name).exists()), folder / _NAMES[0])
    (content,) = load_documents(path)
    if unknown := sorted(content.keys() - _FIELDS):
        raise ValueError(f"{path}: {unknown[0]} is not supported, only {', '.join(sorted(_FIELDS))}")
    objects: list[Object] = []
    for name in content["resources"]:
        named = (folder / name).resolve()
        objects += render_folder(named) if named.is_dir() else load_documents(named)
    for entry in content.get("patches", ()):
        objects = _patched(objects, entry, path)
    for entry in content.get("labels", ()):
        if entry.keys() != {"pairs"}:
            raise ValueError(f"{path}: labels support only pairs")
        for one in objects:
            one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), **entry["pairs"]}
    return objects


def load_documents(path: Path) -> list[Object]:
    """The documents of a file. Raises ValueError for what is not YAML, and OSError."""
    return _read_documents(path.read_text(), path)


def _read_documents(text: str, path: Path) -> list[Any]:
    contents: list[Any] = pickle.loads(_parsed_documents(text, path))
    return contents


@lru_cache(maxsize=128)
def _parsed_documents(text: str, path: Path) -> bytes:
    """Pickled: an installation renders the same files several times, and changes what it gets."""
    contents = []
    try:
        for document in read_yaml(text):
            if error := next((note for note in document.notes if note.is_error), None):
                raise YamlError(error.message, error.line)
            contents.append(document.content)
    except YamlError as error:
        raise ValueError(f"{path}: line {error.line or 1}: {error.message}") from None
    return pickle.dumps([content for content in contents if content])


def _patched(objects: Iterable[Object], entry: Mapping[str, Any], path: Path) -> list[Object]:
    target = entry["target"]
    if target.keys() != {"kind", "name"} or entry.keys() - {"target", "patch", "options"}:
        raise ValueError(f"{path}: patches support only an inline patch of a kind and name")
    done, matched = [], False
    for one in objects:
        if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"]):
            matched = True
            for operation in chain(*_read_documents(entry["patch"], path)):
                _apply(one, operation, path)
        done.append(one)
    if not matched:
        raise ValueError(f"{path}: there is no {target['kind']} {target['name']} to patch")
    return done


def _apply(one: Object, operation: Mapping[str, Any], path: Path) -> None:
    """One operation of a JSON patch."""
    *folders, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    place: Any = one
    for part in folders:
        place = place[int(part) if isinstance(place, list) else part]
    match operation["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), deepcopy(operation["value"]))
        case "add", dict():
            place[last] = deepcopy(operation["value"])
        case "replace", dict() if last in place:
            place[last] = deepcopy(operation["value"])
        case _:
            raise ValueError(f"{path}: {operation['op']} of {operation['path']} is not supported")


Publish = Literal["slices", "pools", "both"]
PUBLISH: Final = ("slices", "pools", "both")
NAMESPACE: Final = "devalloc-system"
DRIVER: Final = "devalloc.io"
LABEL: Final = ("app.kubernetes.io/part-of", "devalloc")
"""Label of every object."""
KUBELET: Final = "/var/lib/kubelet"
PERMITS: Final = "--permits=0.0.0.0:10299"
"""Argument of the controller that enables its permit server."""
FENCING: Final = "--fencing-command=/etc/devalloc/fencing/power-off"
"""Argument of the controller that enables its fencing program."""
_RUNBOOKS: Final = "docs/operations.md"
"""The page to which alerts link, as the rules in ``deploy/monitoring`` have it."""
IMAGES: Final = ("devalloc-controller", "devalloc-node")
UNSET_PREFIX: Final = "image-prefix-not-set.invalid/"
"""Prefix of the images in ``deploy/``. No registry has such a name (RFC 2606), so nothing is pulled by accident."""
MACHINES: Final = "devalloc-machines"
"""The ClusterRole for creating machines."""
IN_EDIT: Final = "rbac.authorization.k8s.io/aggregate-to-edit"
WORKER: Final = {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
"""Node selector expression for nodes outside the control plane."""

_KINDS: Final = {
    "Namespace": ("namespace", "namespaces"),
    "CustomResourceDefinition": ("crds", "customresourcedefinitions"),
    "ServiceAccount": ("rbac", "serviceaccounts"),
    "ClusterRole": ("rbac", "clusterroles"),
    "ClusterRoleBinding": ("rbac", "clusterrolebindings"),
    "Role": ("rbac", "roles"),
    "RoleBinding": ("rbac", "rolebindings"),
    "ValidatingAdmissionPolicy": ("policies", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("policies", "validatingadmissionpolicybindings"),
    "MutatingAdmissionPolicy": ("policies", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("policies", "mutatingadmissionpolicybindings"),
    "NetworkPolicy": ("network", "networkpolicies"),
    "Service": ("network", "services"),
    "PodDisruptionBudget": ("controller", "poddisruptionbudgets"),
    "Deployment": ("controller", "deployments"),
    "DaemonSet": ("node", "daemonsets"),
    "ServiceMonitor": ("monitoring", "servicemonitors"),
    "PrometheusRule": ("monitoring", "prometheusrules"),
}
"""Part and plural of each kind, in the order of creation: policies and rights come before the pods that they confine.
"""
PARTS: Final = tuple(dict.fromkeys(part for part, _ in _KINDS.values()))


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """How to install devalloc."""

    publish: Publish = "both"
    """How nodes publish their devices: as ResourceSlices, DevicePools, or by their label ``devalloc.io/publish``."""
    image_prefix: str = ""
    """Prefix of image names, such as ``registry.example.com/devalloc``. Empty: ``UNSET_PREFIX``."""
    version: str = ""
    """The tag of images. Empty: that of this version."""
    namespace: str = NAMESPACE
    kubelet_dir: str = KUBELET
    """The kubelet's --root-dir."""
    service_monitor: bool = False
    resource_claims: bool = False
    """Let the controller also allocate labelled ResourceClaims, from nodes that are set aside by their label."""
    adoption: bool = False
    """Also install what ``devalloc adopt`` needs: devices of other drivers. Needs ``resource_claims``."""
    permits: bool = False
    """Run the permit server in the controller."""
    neon: bool = False
    """Let the controller read NeonVM's machines and runner pods, and with ``permits`` grant permits to them."""
    neon_agents: str = ""
    """Networks of Neon's agents, separated by blanks, for which the proxy runs that they find. Empty: no proxy."""
    neon_scheduler: str = "devalloc"
    """What Neon's agents have as ``scheduler.schedulerName``: the label ``name`` of the proxy's pod."""
    fencing_secret: str = ""
    """Name of a Secret with the fencing program (key ``power-off``) and the files that it reads. Empty: no program."""
    machines_in_edit: bool = False
    """Let everyone who may edit a namespace also create machines there."""
    workers_only: bool = False
    """Run no privileged pods on control-plane nodes, and do not publish their devices."""
    runbooks: str = ""
    """Address of the page of operations, to which alerts link. Empty: no alerts."""

    @property
    def tag(self) -> str:
        return self.version or VERSION.replace("+", "_")

    @property
    def full_prefix(self) -> str:
        """What stands before an image's name: ``image_prefix``, after a path with a slash."""
        slash = "/" if re.search(PATH_END, self.image_prefix) else ""
        return f"{self.image_prefix}{slash}" or UNSET_PREFIX

    def linked_runbook(self, text: str) -> str:
        """A text of an alert, with the link to its section made absolute."""
        page, _, section = text.partition("#")
        return f"{self.runbooks.partition('#')[0]}#{section}" if page == _RUNBOOKS else text


def every_option(publish: Publish = "both", namespace: str = NAMESPACE) -> InstallOptions:
    """All that can be installed with this way to publish, to find what was: names and kinds count, and no values."""
    if publish == "slices":  # there is no controller, of which all else is a part
        return InstallOptions(publish, "", "any", namespace, workers_only=True)
    return InstallOptions(
        publish,
        "",
        "any",
        namespace,
        service_monitor=True,
        resource_claims=publish == "both",
        adoption=publish == "both",
        permits=True,
        neon=True,
        neon_agents="any",
        fencing_secret="any",
        machines_in_edit=True,
        workers_only=True,
        runbooks="https://any",
    )


def source_folder() -> Path:
    """The folder that contains ``deploy/`` and ``crds/``: inside the installed package, or else the repository."""
    return packaged_path("install/data", ".")


def render_manifests(options: InstallOptions, only: Iterable[str] = ()) -> list[Object]:
    """All objects in the order of creation. ``only``: those of these parts (``PARTS``); default: all.

    Raises ValueError for invalid options.
    """
    _check(options)
    deploy = source_folder() / "deploy"
    objects = render_folder(deploy / "overlays" / options.publish)
    if options.publish != "both" and options.resource_claims:
        raise ValueError(
            "resource claims need publish both, because a label selects the nodes that are set aside for them"
        )
    if options.adoption and not options.resource_claims:
        raise ValueError("adoption needs resource claims, because the controller allocates those of adopted drivers")
    if options.service_monitor:
        objects += _labelled(load_documents(deploy / "overlays" / "service-monitor" / "monitor.yaml"))
    if options.runbooks:
        rules = _labelled(load_documents(deploy / "monitoring" / "rules.yaml"))
        objects += [{**one, "spec": _change_texts(one["spec"], options.linked_runbook)} for one in rules]
    for wanted_too, folder, argument in (
        (options.resource_claims, "resourceclaims", "--resource-claims"),
        (options.adoption, "adoption", ""),
        (options.permits, "permits", PERMITS),
        (options.neon, "neon", "--neon"),
        (bool(options.fencing_secret), "fencing", FENCING),
    ):
        if wanted_too:
            objects += _labelled(render_folder(deploy / folder))
            controller = next(one for one in objects if one["kind"] == "Deployment")
            controller["spec"]["template"]["spec"]["containers"][0]["args"] += filter(None, [argument])
    if options.neon_agents:
        objects += _labelled([_with_agents(one, options) for one in render_folder(deploy / "neon-proxy")])
    if options.fencing_secret:
        controller = next(one for one in objects if one["kind"] == "Deployment")
        volume, mount = fencing_volume(options.fencing_secret)
        controller["spec"]["template"]["spec"]["volumes"].append(volume)
        controller["spec"]["template"]["spec"]["containers"][0]["volumeMounts"].append(mount)
    if options.machines_in_edit:
        for one in objects:
            if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", MACHINES):
                one["metadata"]["labels"] |= {IN_EDIT: "true"}
    if options.workers_only:
        for one in objects:
            if one["kind"] == "DaemonSet":
                _add_condition(one["spec"]["template"]["spec"], WORKER)
    kinds = list(_KINDS)
    wanted = frozenset(only) or frozenset(PARTS)
    chosen = [one for one in objects if part_of(one) in wanted]
    chosen.sort(key=lambda one: kinds.index(one["kind"]))
    return [_apply_options(one, options) for one in chosen]


def _with_agents(one: Object, options: InstallOptions) -> Object:
    """An object of the proxy, with the networks of its agents, and the name by which they find it."""
    names = {"neon-agents": options.neon_agents, "neon-scheduler-name": options.neon_scheduler}
    return {**one, "spec": _change_texts(one["spec"], lambda text: names.get(text, text))} if "spec" in one else one


def images_without_owner(objects: Iterable[Object]) -> list[str]:
    """The images that cannot be ours: those without a prefix, and those of Docker Hub's ``library``, in which only
    Docker publishes. The pods of nodes are privileged."""
    pods = (one["spec"]["template"]["spec"] for one in objects if one["kind"] in ("Deployment", "DaemonSet"))
    images = sorted({container["image"] for pod in pods for container in pod["containers"]})
    return [image for image in images if image.startswith(UNSET_PREFIX) or _OF_DOCKERS_LIBRARY.fullmatch(image)]


_OF_DOCKERS_LIBRARY: Final = re.compile(r"((index\.)?docker\.io/)?(library/)?[^/]*")


def fencing_volume(secret: str) -> tuple[Object, Object]:
    """The volume of the fencing program, and where the controller has it: executable, and read only. Without the
    Secret the controller's pods do not start, so that no one believes in a program that is not there."""
    volume = {"name": "fencing", "secret": {"secretName": secret, "defaultMode": 0o555}}
    return volume, {"name": "fencing", "mountPath": "/etc/devalloc/fencing", "readOnly": True}


def part_of(one: Object) -> str:
    return _KINDS[one["kind"]][0]


def object_path(one: Object) -> str:
    """The object's path at the API server."""
    return f"{object_collection_path(one)}/{one['metadata']['name']}"


def object_collection_path(one: Object) -> str:
    """The path of objects of its kind, in its namespace if it has one."""
    return collection_path(one["apiVersion"], one["kind"], one["metadata"].get("namespace"))


def collection_path(api_version: str, kind: str, namespace: str | None = None) -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return "/".join([root, *(["namespaces", namespace] if namespace else []), _KINDS[kind][1]])


def object_title(one: Object) -> str:
    """The object's name as in kubectl: ``clusterrole.rbac.authorization.k8s.io/devalloc-view``."""
    group = one["apiVersion"].rpartition("/")[0]
    kind = one["kind"].lower() + (f".{group}" if group else "")
    return f"{kind}/{one['metadata']['name']}"


IMAGE_PREFIX: Final = "[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*/?"
"""Pattern of an image prefix: a registry and the beginning of a path. Helm matches it, too."""
IMAGE_PREFIX_WORDS: Final = "a registry and a path without http://, such as registry.example.com/team/"
PATH_END: Final = "[A-Za-z0-9]$"
"""Pattern of the end of a prefix that needs a slash: after any other character the image's name continues the text."""

_PATTERNS: Final = {
    "publish": ("|".join(PUBLISH), "slices, pools or both"),
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of lower-case letters, digits and -"),
    "image_prefix": (f"({IMAGE_PREFIX})?", IMAGE_PREFIX_WORDS),
    "tag": (r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", "an image tag"),
    "neon_agents": (r"([0-9A-Za-z.:/]+( [0-9A-Za-z.:/]+)*)?", "networks such as 10.1.0.0/16, separated by blanks"),
    "neon_scheduler": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of lower-case letters, digits and -"),
    "runbooks": (r"(https?://[!-~]{1,500})?", "an address such as https://docs.example.com/operations.html"),
    "fencing_secret": (r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?", "the name of a Secret"),
    "kubelet_dir": (r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?", "an absolute path"),
}


def _check(options: InstallOptions) -> None:
    """Check the options' texts, because they become parts of policies and paths; and that something uses each option.
    Raises ValueError."""
    for name, (pattern, what) in _PATTERNS.items():
        text = getattr(options, name)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{name.replace('_', ' ')} {text!r} must be {what}")
    for is_wanted, lack in (
        (options.service_monitor, "is no controller to monitor"),
        (options.runbooks, "is no controller to alert about"),
        (options.permits, "is no controller to run the permit server"),
        (options.neon, "is no controller to read NeonVM's machines"),
        (options.fencing_secret, "is no controller to call the fencing program"),
        (options.machines_in_edit, "are no VirtualMachines"),
    ):
        if is_wanted and options.publish == "slices":
            raise ValueError(f"with publish slices there {lack}")
    if options.neon_agents and not (options.neon and options.permits):
        raise ValueError("neon agents need neon and permits: they ask the permit server for machines of NeonVM")


def _add_condition(pod: Object, expression: Any) -> None:
    """Restrict a pod further, to nodes that match this expression."""
    for term in pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        term["matchExpressions"].append(expression)


def _labelled(objects: list[Object]) -> list[Object]:
    for one in objects:
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), LABEL[0]: LABEL[1]}
    return objects


def _apply_options(one: Object, options: InstallOptions) -> Object:
    """The object with the namespace of the options, also inside policies and bindings, and pods with their images and
    folders."""
    if options.namespace != NAMESPACE:
        one = _change_texts(one, lambda text: text.replace(NAMESPACE, options.namespace))
    if one["kind"] not in ("Deployment", "DaemonSet"):
        return one
    pod = one["spec"]["template"]["spec"]
    for container in pod["containers"]:
        name = container["image"].rpartition("/")[2].partition(":")[0]
        container["image"] = f"{options.full_prefix}{name}:{options.tag}"
    if options.kubelet_dir != KUBELET:
        folder = options.kubelet_dir.rstrip("/")
        one["spec"]["template"]["spec"] = _change_texts(pod, lambda text: text.replace(KUBELET, folder))
    return one


def _change_texts(content: Any, change: Callable[[str], str]) -> Any:
    """The content with every text changed, except field names."""
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        return [_change_texts(each, change) for each in content]
    if isinstance(content, dict):
        return {name: _change_texts(each, change) for name, each in content.items()}
    return content
