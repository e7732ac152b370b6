"""What is to be on a cluster: the objects of ``deploy/`` as somebody wants them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from devalloc.install.kustomize import Object, load, render
from devalloc.version import VERSION

Publish = Literal["slices", "pools", "both"]
PUBLISH: Final = ("slices", "pools", "both")
NAMESPACE: Final = "devalloc-system"
DRIVER: Final = "devalloc.io"
LABEL: Final = ("app.kubernetes.io/part-of", "devalloc")
"""On every object."""
KUBELET: Final = "/var/lib/kubelet"
PERMITS: Final = "--permits=0.0.0.0:10299"
"""Of the controller's pods, where it gives permits."""
IMAGES: Final = ("devalloc-controller", "devalloc-node")
MACHINES: Final = "devalloc-machines"
"""The ClusterRole of those who may make machines."""
IN_EDIT: Final = "rbac.authorization.k8s.io/aggregate-to-edit"
WORKER: Final = {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
"""What the labels of a node say that is none of the control plane."""

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
    "NetworkPolicy": ("network", "networkpolicies"),
    "Service": ("network", "services"),
    "PodDisruptionBudget": ("controller", "poddisruptionbudgets"),
    "Deployment": ("controller", "deployments"),
    "DaemonSet": ("node", "daemonsets"),
    "ServiceMonitor": ("monitoring", "servicemonitors"),
}
"""Part and plural of each kind, in the order in which they are created: who runs is confined before it starts."""
PARTS: Final = tuple(dict.fromkeys(part for part, _ in _KINDS.values()))


@dataclass(frozen=True, slots=True)
class Options:
    """How devalloc is installed."""

    publish: Publish = "both"
    """As what nodes publish their devices: ResourceSlices, DevicePools, or by their label ``devalloc.io/publish``."""
    image_prefix: str = ""
    """What stands before the names of images, such as ``registry.example.com/devalloc/``."""
    version: str = ""
    """The tag of images. Empty: that of this installation."""
    namespace: str = NAMESPACE
    kubelet_dir: str = KUBELET
    """The kubelet's --root-dir."""
    service_monitor: bool = False
    resource_claims: bool = False
    """The controller allocates labelled ResourceClaims, too, from nodes that are set aside by their label."""
    permits: bool = False
    """The controller gives permits to machines that are scaled."""
    machines_in_edit: bool = False
    """Who may edit a namespace makes machines there, too."""
    workers_only: bool = False
    """Nothing of devalloc's runs privileged on the nodes of the control plane: their devices are not published."""

    @property
    def tag(self) -> str:
        return self.version or VERSION.replace("+", "_")


def source() -> Path:
    """The folder that holds ``deploy/`` and ``crds/``: inside the installed package, else the repository's."""
    packaged = Path(__file__).parent / "data"
    return packaged if packaged.is_dir() else Path(__file__).parents[2]


def manifests(options: Options, only: Iterable[str] = ()) -> list[Object]:
    """All objects in the order in which they are created. ``only``: those of these parts (``PARTS``); default: all.

    Raises ValueError where the options make no sense.
    """
    _check(options)
    deploy = source() / "deploy"
    objects = render(deploy / "overlays" / options.publish)
    if options.publish == "slices" and options.service_monitor:
        raise ValueError("there is no controller to monitor where nodes publish slices only")
    if options.publish != "both" and options.resource_claims:
        raise ValueError("whose devices go to labelled ResourceClaims a node's label says, which needs publish both")
    if options.service_monitor:
        objects += _labelled(load(deploy / "overlays" / "service-monitor" / "monitor.yaml"))
    if options.publish == "slices" and options.permits:
        raise ValueError("there is no controller to give permits where nodes publish slices only")
    for wanted_too, folder, argument in (
        (options.resource_claims, "resourceclaims", "--resource-claims"),
        (options.permits, "permits", PERMITS),
    ):
        if wanted_too:
            objects += _labelled(render(deploy / folder))
            controller = next(one for one in objects if one["kind"] == "Deployment")
            controller["spec"]["template"]["spec"]["containers"][0]["args"].append(argument)
    if options.publish == "slices" and options.machines_in_edit:
        raise ValueError("there are no VirtualMachines where nodes publish slices only")
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
    return [_changed(one, options) for one in chosen]


def part_of(one: Object) -> str:
    return _KINDS[one["kind"]][0]


def path_of(one: Object) -> str:
    """Where the object is, at the API server."""
    return f"{collection_of(one)}/{one['metadata']['name']}"


def collection_of(one: Object) -> str:
    """Where objects of its kind are, in its namespace if it has one."""
    return collection(one["apiVersion"], one["kind"], one["metadata"].get("namespace"))


def collection(api_version: str, kind: str, namespace: str | None = None) -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return "/".join([root, *(["namespaces", namespace] if namespace else []), _KINDS[kind][1]])


def title(one: Object) -> str:
    """As kubectl calls it: ``clusterrole.rbac.authorization.k8s.io/devalloc-view``."""
    group = one["apiVersion"].rpartition("/")[0]
    kind = one["kind"].lower() + (f".{group}" if group else "")
    return f"{kind}/{one['metadata']['name']}"


_SENSE: Final = {
    "publish": ("|".join(PUBLISH), "slices, pools or both"),
    "namespace": (r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name of lower-case letters, digits and -"),
    "image_prefix": (r"[a-zA-Z0-9._:/-]*", "what may stand before an image's name, such as registry.example.com/team/"),
    "tag": (r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", "a tag of images"),
    "kubelet_dir": (r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?", "an absolute path"),
}


def _check(options: Options) -> None:
    """Texts go into policies and paths."""
    for name, (pattern, what) in _SENSE.items():
        text = getattr(options, name)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{name.replace('_', ' ')} {text!r} must be {what}")


def _add_condition(pod: Object, expression: Any) -> None:
    """Let a pod run only on nodes whose labels say that, too."""
    for term in pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        term["matchExpressions"].append(expression)


def _labelled(objects: list[Object]) -> list[Object]:
    for one in objects:
        one["metadata"]["labels"] = {**one["metadata"].get("labels", {}), LABEL[0]: LABEL[1]}
    return objects


def _changed(one: Object, options: Options) -> Object:
    """With the namespace, which policies and bindings name too, and in pods with images and folders."""
    if options.namespace != NAMESPACE:
        one = _texts(one, lambda text: text.replace(NAMESPACE, options.namespace))
    if one["kind"] not in ("Deployment", "DaemonSet"):
        return one
    pod = one["spec"]["template"]["spec"]
    for container in pod["containers"]:
        name = container["image"].partition(":")[0]
        container["image"] = f"{options.image_prefix}{name}:{options.tag}"
    if options.kubelet_dir != KUBELET:
        folder = options.kubelet_dir.rstrip("/")
        one["spec"]["template"]["spec"] = _texts(pod, lambda text: text.replace(KUBELET, folder))
    return one


def _texts(content: Any, change: Callable[[str], str]) -> Any:
    """The content with every text changed that is no name of a field."""
    if isinstance(content, str):
        return change(content)
    if isinstance(content, list):
        return [_texts(each, change) for each in content]
    if isinstance(content, dict):
        return {name: _texts(each, change) for name, each in content.items()}
    return content
