"""What an earlier installation was made with, and what a new one would take away from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from devalloc.install.apply import NotInstalled, found
from devalloc.install.holders import holders, listed, some
from devalloc.install.kustomize import Object
from devalloc.install.manifests import IMAGES, LABEL, Options, collection, manifests, path_of
from devalloc.store.kubernetes.client import Client

OPTIONS: Final = "devalloc.io/install-options"
"""Annotation of the ClusterRoleBinding that says where devalloc is installed: with which options."""
_RECORD: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "devalloc-node"},
}
_OF_EACH_INSTALL: Final = ("version", "namespace")
"""Options that are not kept: an upgrade is another version, and the namespace is where the record's subjects are."""
_PUBLISH_LABEL: Final = "devalloc.io/publish"
_DEFAULTS: Final = Options()


def recorded(objects: Iterable[Object], options: Options, before: str | None = None) -> list[Object]:
    """The objects with the options noted on them. ``before``: note this text instead, where only a part of the
    installation changes."""
    kept = {field.name: getattr(options, field.name) for field in fields(Options)}
    text = before or json.dumps({k: v for k, v in kept.items() if k not in _OF_EACH_INSTALL}, sort_keys=True)
    done = []
    for one in objects:
        if path_of(one) == path_of(_RECORD):
            annotations = {**one["metadata"].get("annotations", {}), OPTIONS: text}
            one = {**one, "metadata": {**one["metadata"], "annotations": annotations}}
        done.append(one)
    return done


def record(client: Client) -> str | None:
    """The note of the last installation as it stands on the cluster. Raises NotInstalled."""
    stored = found(client, path_of(_RECORD)) or {"metadata": {}}
    text = stored["metadata"].get("annotations", {}).get(OPTIONS)
    return text if isinstance(text, str) else None


def last_options(client: Client, namespace: str) -> dict[str, Any]:
    """The options of the last installation that differ from the defaults, as fields of Options: as they were noted,
    or, where a version before 0.2.0 or other means installed it, read off what runs. Raises NotInstalled."""
    if (text := record(client)) is None:
        running = [
            {"kind": kind, **one}
            for kind in ("Deployment", "DaemonSet")
            for one in listed(client, collection("apps/v1", kind, namespace), labelSelector="=".join(LABEL))
        ]
        monitors = collection("monitoring.coreos.com/v1", "ServiceMonitor", namespace)
        noted = _options_of(running) | {"service_monitor": bool(list(listed(client, monitors)))}
    else:
        noted = _read(text)
    return {name: value for name, value in noted.items() if value != getattr(_DEFAULTS, name)}


def _read(text: str) -> dict[str, Any]:
    """Raises NotInstalled where somebody has made something else of the note. Options of a newer version are left."""
    try:
        noted = json.loads(text)
        named = {field.name for field in fields(Options)} - set(_OF_EACH_INSTALL)
        options = {name: noted[name] for name in sorted(named & noted.keys())}
        for name, value in options.items():
            if type(value) is not type(getattr(_DEFAULTS, name)):
                raise ValueError(f"{name}: {value!r} is not a {type(getattr(_DEFAULTS, name)).__name__}")
        manifests(Options(**options), ["namespace"])
    except (ValueError, AttributeError, TypeError) as error:
        raise NotInstalled(
            f"ClusterRoleBinding devalloc-node has an annotation {OPTIONS} that cannot be read ({error}); "
            "use --reset and give all options"
        ) from None
    return options


def _options_of(running: Sequence[Object]) -> dict[str, Any]:
    """Options, read off Deployments and DaemonSets: those that 0.1.0 knew."""
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"]["containers"][0] for one in running}
    if not pods.keys() & {"devalloc-controller", "devalloc-node", "devalloc-node-pools"}:
        return {}
    with_controller = "both" if "devalloc-node" in pods else "pools"
    options: dict[str, Any] = {"publish": with_controller if "devalloc-controller" in pods else "slices"}
    for container in pods.values():
        path, _, name = container["image"].rpartition("/")
        if name.partition(":")[0] in IMAGES:
            options["image_prefix"] = f"{path}/" if path else ""
        for argument in container.get("args", ()):
            if argument.startswith("--kubelet-dir="):
                options["kubelet_dir"] = argument.partition("=")[2]
    arguments = pods.get("devalloc-controller", {}).get("args", ())
    options["resource_claims"] = "--resource-claims" in arguments
    options["permits"] = any(argument.startswith("--permits") for argument in arguments)
    return options


# -- what would be taken away ----------------------------------------------------------------------------------------


def refuse_held(client: Client, objects: Sequence[Object], going: Sequence[Object]) -> None:
    """Raises NotInstalled where something that goes, or serves other nodes from now on, still serves somebody."""
    if problems := list(_held(client, objects, going)):
        raise NotInstalled(
            f"{'; '.join(problems)}. Delete these first, repeat the options of the last installation, or use --force, "
            "which leaves the devices as they are"
        )


def _held(client: Client, objects: Sequence[Object], going: Sequence[Object]) -> Iterator[str]:
    names_going = {one["metadata"]["name"] for one in going if one["kind"] in ("Deployment", "DaemonSet")}
    if not names_going:
        return
    having = list(holders(client))
    after = [one for one in objects if one["kind"] == "DaemonSet"]
    before = [
        *(one for one in going if one["kind"] == "DaemonSet"),
        *(stored for one in after if (stored := found(client, path_of(one))) is not None),
    ]
    lost: dict[str, str] = {}
    for node in listed(client, "/api/v1/nodes"):
        label = node["metadata"].get("labels", {}).get(_PUBLISH_LABEL)
        was, will_be = serving(before, label), serving(after, label)
        if was and not was & will_be:
            lost[node["metadata"]["name"]] = ", ".join(sorted(was))
    prepared = [each for each in having if each.is_prepared and (each.node in lost or (lost and each.node is None))]
    if prepared:
        sets = sorted({lost[each.node] for each in prepared if each.node is not None} or set(lost.values()))
        titles = sorted(each.title for each in prepared)
        yield f"DaemonSet {', '.join(sets)} would go from nodes that have devices prepared for {some(titles)}"
    if "devalloc-controller" in names_going and (
        ours := sorted(each.title for each in having if each.kind != "ResourceClaim")
    ):
        yield f"Deployment devalloc-controller would go, and nobody would take back the devices of {some(ours)}"


def serving(daemonsets: Iterable[Object], label: str | None) -> frozenset[str]:
    """Names of the DaemonSets whose pods are for nodes with this value of the label (None: without it)."""
    return frozenset(one["metadata"]["name"] for one in daemonsets if _is_for(one, label))


def _is_for(daemonset: Mapping[str, Any], label: str | None) -> bool:
    affinity: dict[str, Any] = daemonset["spec"]["template"]["spec"].get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(
        all(
            (label in expression["values"]) == (expression["operator"] == "In")
            for expression in term.get("matchExpressions", ())
            if expression["key"] == _PUBLISH_LABEL
        )
        for term in terms
    )
