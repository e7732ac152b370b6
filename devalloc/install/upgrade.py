"""Upgrades: the options of the last installation, and what a new one would take away from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from devalloc.api.meta import PUBLISH as PUBLISH_LABEL
from devalloc.install.adoption import read_rules
from devalloc.install.apply import NotInstalled, get_or_none
from devalloc.install.manifests import (
    IMAGES,
    LABEL,
    UNSET_PREFIX,
    InstallOptions,
    Object,
    collection_path,
    object_path,
    render_manifests,
)
from devalloc.install.remove import format_names, holding_objects, list_objects
from devalloc.store.kubernetes.client import Client

OPTIONS_ANNOTATION: Final = "devalloc.io/install-options"
"""Annotation with the options of the installation, on the ClusterRoleBinding that names devalloc's namespace."""
_RECORD: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "devalloc-node"},
}
_ADOPTION_RIGHTS: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "devalloc-controller-adoption"},
}
_NOT_RECORDED: Final = ("version", "namespace")
"""Options that are not recorded: an upgrade changes the version, and the binding's subjects have the namespace."""
_DEFAULTS: Final = InstallOptions()


def with_recorded_options(
    objects: Iterable[Object], options: InstallOptions, before: str | None = None
) -> list[Object]:
    """The objects with the options recorded in the annotation. ``before``: record this text instead, because only a
    part of the installation changes."""
    values = {field.name: getattr(options, field.name) for field in fields(InstallOptions)}
    text = before or json.dumps({k: v for k, v in values.items() if k not in _NOT_RECORDED}, sort_keys=True)
    done = []
    for one in objects:
        if object_path(one) == object_path(_RECORD):
            annotations = {**one["metadata"].get("annotations", {}), OPTIONS_ANNOTATION: text}
            one = {**one, "metadata": {**one["metadata"], "annotations": annotations}}
        done.append(one)
    return done


def recorded_options(client: Client) -> str | None:
    """The recorded options of the last installation on the cluster. Raises NotInstalled."""
    stored = get_or_none(client, object_path(_RECORD)) or {"metadata": {}}
    text = stored["metadata"].get("annotations", {}).get(OPTIONS_ANNOTATION)
    return text if isinstance(text, str) else None


def last_options(client: Client, namespace: str) -> dict[str, Any]:
    """The options of the last installation that differ from the defaults, as fields of Options. If a version before
    0.2.0 or other means installed it, they are inferred from what runs. Raises NotInstalled."""
    if (text := recorded_options(client)) is None:
        running = [
            {"kind": kind, **one}
            for kind in ("Deployment", "DaemonSet")
            for one in list_objects(client, collection_path("apps/v1", kind, namespace), labelSelector="=".join(LABEL))
        ]
        monitors = collection_path("monitoring.coreos.com/v1", "ServiceMonitor", namespace)
        noted = _options_of(running) | {"service_monitor": bool(list(list_objects(client, monitors)))}
        noted["adoption"] = get_or_none(client, object_path(_ADOPTION_RIGHTS)) is not None
    else:
        noted = _read(text)
    return {name: value for name, value in noted.items() if value != getattr(_DEFAULTS, name)}


def _read(text: str) -> dict[str, Any]:
    """Parse the recorded options; ignores options of newer versions. Raises NotInstalled if the text is damaged."""
    try:
        noted = json.loads(text)
        named = {field.name for field in fields(InstallOptions)} - set(_NOT_RECORDED)
        options = {name: noted[name] for name in sorted(named & noted.keys())}
        for name, value in options.items():
            if type(value) is not type(getattr(_DEFAULTS, name)):
                raise ValueError(f"{name}: {value!r} is not a {type(getattr(_DEFAULTS, name)).__name__}")
        render_manifests(InstallOptions(**options), ["namespace"])
    except (ValueError, AttributeError, TypeError) as error:
        raise NotInstalled(
            f"ClusterRoleBinding devalloc-node has an annotation {OPTIONS_ANNOTATION} that cannot be read ({error}); "
            "use --reset and give all options"
        ) from None
    return options


def _options_of(running: Sequence[Object]) -> dict[str, Any]:
    """The options that 0.1.0 knew, inferred from Deployments and DaemonSets."""
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0] for one in running}
    if not pods.keys() & {"devalloc-controller", "devalloc-node", "devalloc-node-pools"}:
        return {}
    with_controller = "both" if "devalloc-node" in pods else "pools"
    options: dict[str, Any] = {"publish": with_controller if "devalloc-controller" in pods else "slices"}
    for container in pods.values():
        path, _, name = container["image"].rpartition("/")
        if name.partition(":")[0] in IMAGES:
            options["image_prefix"] = f"{path}/" if path and f"{path}/" != UNSET_PREFIX else ""
        for argument in container.get("args", ()):
            if argument.startswith("--kubelet-dir="):
                options["kubelet_dir"] = argument.partition("=")[2]
    arguments = pods.get("devalloc-controller", {}).get("args", ())
    options["resource_claims"] = "--resource-claims" in arguments
    options["neon"] = "--neon" in arguments
    options["permits"] = any(argument.startswith("--permits") for argument in arguments)
    return options


# -- what would be removed -------------------------------------------------------------------------------------------


def refuse_while_in_use(client: Client, objects: Sequence[Object], going: Sequence[Object]) -> None:
    """Raises NotInstalled if objects that would be removed, or would serve other nodes, are still in use."""
    if problems := list(_users_of_removed(client, objects, going)):
        raise NotInstalled(
            f"{'; '.join(problems)}. Delete these first, repeat the options of the last installation, or use --force, "
            "which leaves the devices as they are"
        )


def _users_of_removed(client: Client, objects: Sequence[Object], going: Sequence[Object]) -> Iterator[str]:
    if any(object_path(one) == object_path(_ADOPTION_RIGHTS) for one in going) and (adopted := read_rules(client)):
        names = format_names(sorted({f"driver/{rule.driver}" for rule in adopted}))
        yield f"nothing would allocate the devices of {names}, which are adopted (devalloc unadopt)"
    names_going = {one["metadata"]["name"] for one in going if one["kind"] in ("Deployment", "DaemonSet")}
    if not names_going:
        return
    having = list(holding_objects(client))
    after = [one for one in objects if one["kind"] == "DaemonSet"]
    before = [
        *(one for one in going if one["kind"] == "DaemonSet"),
        *(stored for one in after if (stored := get_or_none(client, object_path(one))) is not None),
    ]
    lost: dict[str, str] = {}
    for node in list_objects(client, "/api/v1/nodes"):
        label = node["metadata"].get("labels", {}).get(PUBLISH_LABEL)
        was, will_be = daemonsets_for_label(before, label), daemonsets_for_label(after, label)
        if was and not was & will_be:
            lost[node["metadata"]["name"]] = ", ".join(sorted(was))
    prepared = [each for each in having if each.is_prepared and (each.node in lost or (lost and each.node is None))]
    if prepared:
        sets = sorted({lost[each.node] for each in prepared if each.node is not None} or set(lost.values()))
        titles = sorted(each.title for each in prepared)
        users = format_names(titles)
        yield f"DaemonSet {', '.join(sets)} would be removed from nodes that have devices prepared for {users}"
    if "devalloc-controller" in names_going and (
        ours := sorted(each.title for each in having if each.kind != "ResourceClaim")
    ):
        owners = format_names(ours)
        yield f"Deployment devalloc-controller would be removed, and nothing would release the devices of {owners}"


def daemonsets_for_label(daemonsets: Iterable[Object], label: str | None) -> frozenset[str]:
    """Names of the DaemonSets whose pods run on nodes with this value of the label (None: without it)."""
    return frozenset(one["metadata"]["name"] for one in daemonsets if _is_for(one, label))


def _is_for(daemonset: Mapping[str, Any], label: str | None) -> bool:
    affinity: dict[str, Any] = daemonset["spec"]["template"]["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(
        all(
            (label in expression["values"]) == (expression["operator"] == "In")
            for expression in term.get("matchExpressions", ())
            if expression["key"] == PUBLISH_LABEL
        )
        for term in terms
    )
