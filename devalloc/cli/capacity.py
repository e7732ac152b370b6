"""``devalloc capacity``: how many more claims like this one fit, and what a host has for machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli import hostcapacity, suggestions
from devalloc.cli.contents import contents, with_store_option
from devalloc.cli.options import files_option, namespace_option, output_option
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, Failed, verb

if TYPE_CHECKING:
    from devalloc_solver.copies import Capacity

Object = dict[str, Any]
CLAIM = "DeviceClaim"


@verb("capacity")
@click.argument("name", required=False, shell_complete=suggestions.claims)
@files_option(required=False, help="The claim to count with, and what else is to count: a file, a folder, or -.")
@namespace_option
@output_option("table", "json", "yaml")
@with_store_option
@place_options
@click.option("--host", is_flag=True, help="Tell what this host has for machines, instead of counting with a claim.")
@click.option("--node-name", metavar="NAME", help="With --host: the node that this host is; its host name by default.")
@click.option(
    "--sysfs-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="With --host: read this tree instead of the host's, the folder that holds sys and proc.",
)
@click.option(
    "--socket",
    "plugin",
    type=click.Path(path_type=Path),
    metavar="PATH",
    envvar="DEVALLOC_NODE_SOCKET",
    help="With --host: the socket of the node plugin, whose machines without an object of the store count too [env: "
    "DEVALLOC_NODE_SOCKET; default: where a plugin of this host has it, if there is one].",
)
@hostcapacity.capacity_options
def capacity(
    name: str | None,
    files: tuple[str, ...],
    namespace: str,
    output: str,
    with_store: bool | None,
    place: Place,
    host: bool,
    node_name: str | None,
    sysfs_root: Path,
    plugin: Path | None,
    limits: dict[str, Any],
) -> int:
    """Count how many more claims like one fit beside all that are allocated. Pending claims do not count.

    No more than ResourceQuotas allow.

    The claim is one of the store, by NAME, or one of the manifests. It is counted on what the store, or the cluster,
    has, or on the manifests alone when there are pools among them.

    With --host: the CPUs, memory, disk, network and disk bandwidth, and GPUs that this host has for machines; how much
    of them may be promised (oversubscription), is promised to the store's machines, and is left. The limits and ratios
    below go with it.

    \b
    devalloc capacity notebook
    devalloc capacity -f claim.yaml
    devalloc capacity notebook -f examples/whole-gpu
    devalloc capacity --host --network-limit 10Gbps --oversub-cpu 2
    """
    if host:
        if name is not None or files:
            raise BadInput("--host tells what the host has and counts no claim: leave the claim out")
        return _host(node_name, sysfs_root, output, place.store, plugin, limits)
    from devalloc.cli.output import dump, working
    from devalloc.controller.foreign import is_foreign
    from devalloc_solver import capacity as count

    question = contents(files, namespace, place, with_store)
    documents = [one for one in question.all if _is_named(one)]
    given = [document.content for document in question.documents.good]
    is_of_files = bool(given) or (bool(files) and name is None)
    candidates = given if is_of_files and name is None else documents
    claims = [one for one in candidates if one["kind"] == CLAIM and not is_foreign(one)]
    if files and name is None and not claims and question.code:
        return question.code  # what is wrong with the claim was shown
    claim = _chosen(claims, _claim_name(name, given, namespace), namespace, place if question.is_of_store else None)
    with working("counting"):
        found = _within_quotas(count(documents, claim), documents, claim)
    if output in ("json", "yaml"):
        by_node = [{"node": node, "count": number} for node, number in found.by_node.items()]
        identity = {"namespace": claim["metadata"].get("namespace", "default"), "name": claim["metadata"]["name"]}
        reason = {"reason": found.reason, "message": found.message}
        dump({**identity, "count": found.count, "proven": found.proven, "byNode": by_node, **reason}, output)
    else:
        _show(found, claim)
    return question.code


def _host(
    node_name: str | None, root: Path, output: str, store: Path | None, plugin: Path | None, limits: dict[str, Any]
) -> int:
    import socket

    from devalloc.cli import hostmachines
    from devalloc.cli.output import dump
    from devalloc.cli.storage import store_path

    where = store_path(store)
    # The disk of a recorded host is not here.
    config = hostcapacity.settings(limits, data_dir=where.absolute().parent if root == Path("/") else None)
    if plugin is None and root == Path("/"):
        plugin = hostmachines.plugin_here(where)
    found = hostcapacity.status(root, node_name or socket.gethostname().lower(), where, config, plugin)
    if output in ("json", "yaml"):
        dump(found.to_dict(), output)
    else:
        hostcapacity.show(found)
    return 0


def _is_named(content: Any) -> bool:
    """Whether it can be an object at all."""
    metadata = content.get("metadata") if isinstance(content, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and "kind" in content


def _within_quotas(found: Capacity, documents: list[Object], claim: Object) -> Capacity:
    """No more than they allow, and then not where: there is room for more."""
    from devalloc_solver.quota import left_for

    left = left_for(documents, claim)
    if left is None or found.reason is not None or left[0] >= found.count:
        return found
    told = f"{left[1]}; there is room for {found.count} more"
    return replace(found, count=left[0], proven=True, by_node={}, reason="QuotaExceeded", message=told)


def _claim_name(name: str | None, manifests: list[Object], namespace: str) -> str | None:
    """The name in NAME or KIND/NAME. Raises BadInput for one of another kind than DeviceClaim."""
    from devalloc.cli.names import kind_of

    word, _, bare = (name or "").rpartition("/")
    is_of_kubernetes = word.lower().partition(".")[0] in ("resourceclaim", "resourceclaims")
    named = {
        one["kind"]
        for one in manifests
        if (one["metadata"].get("namespace", "default"), one["metadata"]["name"]) == (namespace, bare)
    }
    if is_of_kubernetes or (not word and CLAIM not in named and "ResourceClaim" in named):
        raise BadInput(
            f"{namespace}/{bare} is a ResourceClaim, and `devalloc capacity` counts with DeviceClaims only; "
            "`devalloc dra allocate -f` shows what ResourceClaims of files get"
        )
    if word and (kind := kind_of(word).kind) != CLAIM:
        raise BadInput(f"only DeviceClaims are counted with, not a {kind}: {name}")
    return bare or None


def _chosen(claims: list[Object], name: str | None, namespace: str, place: Place | None) -> Object:
    """The claim of that name, or the only one. ``place``: of the store or cluster that they are of. Raises BadInput,
    Failed."""
    from devalloc.cli.names import among, namesake
    from devalloc.cli.place import opened
    from devalloc.store.key import Key

    bare = name.rpartition("/")[2] if name else None
    names = [str(claim["metadata"]["name"]) for claim in claims]
    if bare is None and len(claims) > 1:
        raise BadInput(f"name the claim to count with, such as: devalloc capacity {names[0]}{among('', names)}")
    if bare is None and not claims:
        raise BadInput("there is no DeviceClaim to count with; give one with -f, or apply one")
    for claim in claims:
        metadata = claim["metadata"]
        if bare is None or (metadata["name"], metadata.get("namespace", "default")) == (bare, namespace):
            return claim
    here = [
        name
        for name, claim in zip(names, claims, strict=True)
        if claim["metadata"].get("namespace", "default") == namespace
    ]
    missing = f"there is no claim {namespace}/{bare}"
    if place is None:
        raise Failed(missing + among(str(bare), here))
    with opened(place) as store:
        raise Failed(missing + namesake(store, Key(CLAIM, namespace, str(bare))))


def _show(found: Capacity, claim: Object) -> None:
    subject = f"{claim['metadata'].get('namespace', 'default')}/{claim['metadata']['name']}"
    where = ", ".join(f"{number} on {node}" for node, number in found.by_node.items() if node is not None)
    click.echo(
        f"{'' if found.proven else 'at least '}{found.count} more like {subject}" + (f": {where}" if where else "")
    )
    if found.reason:
        click.echo(f"{found.reason}: {found.message}")
