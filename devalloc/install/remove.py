"""Taking devalloc off a cluster, so that nothing is left behind: first what nodes hold, while they are there to put it
back, then what runs, then everything else."""

from __future__ import annotations

import time
from collections.abc import Iterator

from devalloc.api import meta
from devalloc.api.kinds import KINDS
from devalloc.install.apply import NotInstalled, Say, delete, delete_at, found, installed, refuse_elsewhere, wait_until
from devalloc.install.holders import OURS, holders, listed, place_of, some
from devalloc.install.kustomize import Object
from devalloc.install.manifests import DRIVER, PUBLISH, Options, manifests, path_of, title
from devalloc.store.kubernetes.apierror import ApiError
from devalloc.store.kubernetes.client import Client

_RUNS = ("DaemonSet", "Deployment")
_KEPT = ("CustomResourceDefinition",)
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
FORCE_SECONDS = 5.0
"""How long nodes are waited for where devices need not be put back."""
WAKE_SECONDS = 3.0
"""After which a CRD that does not go is touched."""


def uninstall(
    client: Client, namespace: str, say: Say, until: float, *, crds: bool, force: bool, dry_run: bool = False
) -> None:
    """Delete what was installed in this namespace and beside it, however that was done.

    ``crds``: the CRDs too, and with them every claim, machine, pool and class. ``force``: also while devices are
    prepared, which then stay so on their nodes. ``dry_run``: only say what would be deleted. Raises NotInstalled,
    before anything is deleted where something is in use that would stay; doing it again goes on.
    """
    refuse_elsewhere(client, namespace)
    there = list(_there(client, namespace))
    _refuse_in_use(client, say, crds=crds, force=force)
    if crds:
        _delete_ours(client, say, until, force=force, dry_run=dry_run)
        if not (dry_run or force):  # pods have gone on asking for devices meanwhile
            _refuse_in_use(client, say, crds=False, force=force)
    for one in there:
        if one["kind"] in _RUNS:
            delete(client, one, say, dry_run=dry_run)
    if not dry_run:
        _wait_for_pods(client, namespace, until)
    for one in listed(client, _SLICES, fieldSelector=f"spec.driver={DRIVER}"):
        name = one["metadata"]["name"]
        delete_at(client, f"{_SLICES}/{name}", one, say, f"resourceslice.resource.k8s.io/{name}", dry_run=dry_run)
    last = [one for one in there if one["kind"] in ("Namespace", *(_KEPT if crds else ()))]
    for one in there:
        if one["kind"] not in (*_RUNS, *_KEPT, "Namespace"):
            delete(client, one, say, dry_run=dry_run)
    for one in last:
        delete(client, one, say, dry_run=dry_run)
    for one in () if dry_run else last:
        _wait_until_gone(client, path_of(one), title(one), until)


def _refuse_in_use(client: Client, say: Say, *, crds: bool, force: bool) -> None:
    """Raises NotInstalled where a node has devices prepared for something that stays. ``crds``: claims and machines of
    ours do not, their nodes are waited for."""
    stays = [each for each in holders(client) if each.is_prepared and not (crds and each.kind in OURS)]
    if not stays:
        return
    titles = some(sorted(each.title for each in stays))
    if not force:
        raise NotInstalled(
            f"devices are in use: {titles}; without devalloc on their nodes nobody puts them back. Delete these first, "
            "or use --force, which leaves the devices as they are"
        )
    say(f"still in use, and left so on their nodes: {titles}")


def _there(client: Client, namespace: str) -> Iterator[Object]:
    """What ``install`` applied, of whichever version, and by its name what was brought by other means."""
    seen = set()
    for one in installed(client, namespace):
        seen.add(path_of(one))
        yield one
    by_name: dict[str, Object] = {}
    for publish in PUBLISH:
        options = Options(
            publish,
            "",
            "any",
            namespace,
            service_monitor=publish != "slices",
            resource_claims=publish == "both",
            permits=publish != "slices",
        )
        by_name |= {path_of(one): one for one in reversed(manifests(options))}
    for path, one in by_name.items():
        if path not in seen and (stored := found(client, path)) is not None:
            yield {**stored, "apiVersion": one["apiVersion"], "kind": one["kind"]}


def _delete_ours(client: Client, say: Say, until: float, *, force: bool, dry_run: bool) -> None:
    """Machines, then claims: their nodes end what runs, and put devices back."""
    for kind in (KINDS[name] for name in OURS):
        path = f"/apis/{kind.api_version}/{kind.plural}"
        for one in listed(client, path):
            title_of_one = f"{kind.singular}.{kind.group}/{one['metadata']['name']}"
            delete_at(client, _place(path, one), one, say, title_of_one, dry_run=dry_run)
        if dry_run:
            continue

        def is_empty(path: str = path) -> bool:
            return not list(listed(client, path))

        if wait_until(is_empty, min(until, time.monotonic() + FORCE_SECONDS) if force else until):
            continue
        left = list(listed(client, path))
        if not force:
            raise NotInstalled(
                f"still there: {some(sorted(map(place_of, left)))}; look at the node plugins there, or use --force, "
                "which leaves their devices as they are on the nodes"
            )
        for one in left:
            _let_go(client, _place(path, one), one)
            say(f"{kind.singular}.{kind.group}/{one['metadata']['name']} let go; {place_of(one)}")


def _let_go(client: Client, path: str, one: Object) -> None:
    """Take the finalizer of its node off."""
    finalizers = [name for name in one["metadata"].get("finalizers", ()) if name != meta.NODE_FINALIZER]
    try:
        client.replace(path, {**one, "metadata": {**one["metadata"], "finalizers": finalizers}})
    except ApiError as error:
        if not error.is_not_found:
            raise NotInstalled(f"{path} cannot be let go of: {error}; try again") from None


def _wait_for_pods(client: Client, namespace: str, until: float) -> None:
    """Until what ran has ended: a node plugin would publish again."""
    names = "app.kubernetes.io/name in (devalloc-controller,devalloc-node,devalloc-node-pools,devalloc-node-set-aside)"
    path = f"/api/v1/namespaces/{namespace}/pods"

    def are_gone() -> bool:
        return not list(listed(client, path, labelSelector=names))

    if not wait_until(are_gone, until):
        left = ", ".join(one["metadata"]["name"] for one in listed(client, path, labelSelector=names))
        raise NotInstalled(f"pods do not end: {left}; kubectl -n {namespace} describe pods")


def _wait_until_gone(client: Client, path: str, what: str, until: float) -> None:
    while not wait_until(lambda: found(client, path) is None, min(until, time.monotonic() + WAKE_SECONDS)):
        now = found(client, path) or {}
        if time.monotonic() > until:
            conditions = now.get("status", {}).get("conditions", ())
            why = "; ".join(each["message"] for each in conditions if each["status"] == "True" and "message" in each)
            raise NotInstalled(f"{what} is being deleted, and not gone yet: {why or 'the server does not say why'}")
        if now.get("kind") == "CustomResourceDefinition":
            _wake(client, path, now)


def _wake(client: Client, path: str, crd: Object) -> None:
    """Have the API server look at it again: one that is deleted soon after it was made may be forgotten for five
    minutes, because its first try fails and the second one takes its own note of that for somebody else's change."""
    annotations = {**crd["metadata"].get("annotations", {}), "devalloc.io/deleting": str(time.time_ns())}
    try:
        client.replace(path, {**crd, "metadata": {**crd["metadata"], "annotations": annotations}})
    except ApiError as error:
        if not (error.is_not_found or error.is_conflict):
            raise NotInstalled(f"{path} cannot be written: {error}") from None


def _place(path: str, one: Object) -> str:
    """The path of an object of a list over all namespaces."""
    root, _, plural = path.rpartition("/")
    return f"{root}/namespaces/{one['metadata']['namespace']}/{plural}/{one['metadata']['name']}"
