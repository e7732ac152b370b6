"""``devalloc capacity``: what a host offers to machines, and how many more claims like this one fit."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from devalloc.api.findings import AT_LENGTH, Finding, message_of
from devalloc.api.reasons import Reason
from devalloc.cli.command import BadInput, CommandFailed, NoSuchObject
from devalloc.cli.object_names import kind_of, not_found_hint, similar_names_hint
from devalloc.cli.options.common import CountOptions
from devalloc.cli.options.manifests import HostOptions
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.host import print_status
from devalloc.cli.render.output import print_content, show_spinner
from devalloc.cli.resource_claims import CLAIM as RESOURCE_CLAIM
from devalloc.cli.resource_claims import (
    TEMPLATE,
    as_claim,
    documents_about,
    explain_lack,
    load_resource_objects,
    of_kind,
    resource_kind,
)
from devalloc.cli.solver_input import load_solver_input
from devalloc.cli.target import open_target
from devalloc.cli.terminal import print_line, print_note
from devalloc.controller.reconcile.stored_claims import is_foreign
from devalloc.machines.schedule.what_if import requested_documents
from devalloc.programs.inventory_options import InventoryOptions
from devalloc.programs.settings import store_path
from devalloc.settings import settings_of
from devalloc.store.errors import Key, StoreError

if TYPE_CHECKING:
    from devalloc_solver.public.remaining_capacity import Capacity


Object = dict[str, Any]
CLAIM = "DeviceClaim"


def capacity(
    name: str | None,
    files: tuple[str, ...],
    namespace: str,
    output: str,
    with_store: bool | None,
    place: StoreTarget,
    options: CountOptions,
    host: HostOptions,
) -> int:
    """Count how many more claims like one fit, or print what this host has for machines."""
    if host.is_asked:
        if name is not None or files:
            raise BadInput("--host shows the host's capacity and counts no claims: leave the claim out")
        return _host(host, place.store, output)
    if idle := _given_host_options():
        raise BadInput(f"{' and '.join(idle)}: only with --host, which shows what this host offers to machines")
    from devalloc_solver import capacity as count

    objects: list[Object] = []
    if not files and name is not None and (kind := resource_kind(name.rpartition("/")[0])):
        objects = load_resource_objects(place)
        claim = _chosen([*of_kind(objects, kind)], name, namespace, None)
        documents, code = documents_about(as_claim(claim), objects), 0
    else:
        question = load_solver_input(files, namespace, place, with_store)
        documents, code = [one for one in question.all if _is_named(one)], question.code
        given = [document.content for document in question.documents.good]
        is_of_files = bool(given) or (bool(files) and name is None)
        candidates = given if is_of_files and name is None else documents
        if name is not None and not question.is_of_store:
            candidates = [*documents, *of_kind(given, TEMPLATE)]  # also those that pods of the manifests name
        claims = _claims_to_count(candidates, name, namespace)
        if files and name is None and not claims and code:
            return code  # the claim's problems were already shown
        claim = _chosen(claims, name, namespace, place if question.is_of_store else None)
    with show_spinner("counting"):
        counted = count(documents if objects else requested_documents(documents), claim, **asdict(options))
    if objects and not counted.count:
        code_of_lack, why = explain_lack(as_claim(claim), objects, Reason.NO_MATCHING_DEVICES.value, Finding(()))
        if code_of_lack == Reason.NOT_ADOPTED:
            counted = replace(counted, reason=code_of_lack, message=message_of(why, AT_LENGTH))
    if output in ("json", "yaml"):
        by_node = [{"node": node, "count": number} for node, number in counted.by_node.items()]
        identity = {"namespace": claim["metadata"].get("namespace", "default"), "name": claim["metadata"]["name"]}
        reason = {"reason": counted.reason, "message": counted.message}
        print_content(
            {**identity, "count": counted.count, "proven": counted.proven, "byNode": by_node, **reason}, output
        )
    else:
        _show(counted, claim, files)
    return code


def _given_host_options() -> list[str]:
    """Options for --host on the command line; variables may be set for other verbs, too."""
    context = click.get_current_context()
    sources = ((each.flag, context.get_parameter_source(each.parameter)) for each in settings_of(HostOptions))
    return [flag for flag, source in sources if source is ParameterSource.COMMANDLINE]


def _host(options: HostOptions, store: Path | None, output: str) -> int:
    from devalloc.cli import node_machines
    from devalloc.inventory.capacity.stored import pull_refusal

    inventory = InventoryOptions(node_name=options.node_name)
    inventory.check_node_name()
    where, root = store_path(store), options.sysfs_root
    is_here = root == Path("/")  # a recorded host's disk is not on this machine
    config = options.limits.checked(where.absolute().parent if is_here else None)
    plugin = node_machines.plugin_socket(where) if options.socket is None and is_here else options.socket
    status = node_machines.capacity_status(root, inventory.node, where, config, plugin)
    if output in ("json", "yaml"):
        print_content(status.to_dict(), output)
    else:
        print_status(status)
    if options.pull is not None and (refusal := pull_refusal(status, options.pull)) is not None:
        raise CommandFailed(f"{refusal}; remove what is no longer needed, or raise --max-image-storage or --disk-limit")
    return 0


def _is_named(content: Any) -> bool:
    """Whether it has the names that every object has."""
    metadata = content.get("metadata") if isinstance(content, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str) and "kind" in content


def _claims_to_count(objects: list[Object], name: str | None, namespace: str) -> list[Object]:
    """The claims that NAME or KIND/NAME may mean: of the kind that is named, otherwise DeviceClaims, and if there are
    none (of that name), ResourceClaims, then templates of these. Raises BadInput if the kind is another one."""
    word, _, bare = (name or "").rpartition("/")
    own = [one for one in objects if one["kind"] == CLAIM and not is_foreign(one)]
    by_kind = {CLAIM: own, **{kind: [*of_kind(objects, kind)] for kind in (RESOURCE_CLAIM, TEMPLATE)}}
    if word:
        kind = resource_kind(word) or kind_of(word).kind
        if kind not in by_kind:
            raise BadInput(f"`devalloc capacity` counts with claims only, not with a {kind}: {name}")
        return by_kind[kind]
    for claims in by_kind.values():
        named = [(one["metadata"].get("namespace") or "default", one["metadata"]["name"]) for one in claims]
        if claims and (not bare or (namespace, bare) in named):
            return claims
    return own


def _chosen(claims: list[Object], name: str | None, namespace: str, place: StoreTarget | None) -> Object:
    """The claim of that name, or the only one. ``place``: their store or cluster. Raises BadInput, NoSuchObject."""
    bare = name.rpartition("/")[2] if name else None
    names = [str(claim["metadata"]["name"]) for claim in claims]
    if bare is None and len(claims) > 1:
        raise BadInput(
            f"name the claim to count with, such as: devalloc capacity {names[0]}{similar_names_hint('', names)}"
        )
    if bare is None and not claims:
        raise BadInput(
            "there is no claim to count with; give one with -f, or apply one; --host shows what this host offers "
            "to machines"
        )
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
    if place is not None and _is_class(place, str(bare)):
        raise NoSuchObject(
            f"{missing}; {bare} is a class: to count claims of it, give one with -f, such as the output of "
            f"`devalloc get claim/NAME -o yaml` with deviceClass: {bare}"
        )
    if place is None:
        raise NoSuchObject(missing + similar_names_hint(str(bare), here))
    with open_target(place) as store:
        raise NoSuchObject(missing + not_found_hint(store, Key(CLAIM, namespace, str(bare))))


def _is_class(place: StoreTarget, name: str) -> bool:
    with open_target(place) as store:
        try:
            return bool(store.get("DeviceClass", None, name))
        except StoreError:
            return False


def _show(counted: Capacity, claim: Object, files: tuple[str, ...]) -> None:
    subject = f"{claim['metadata'].get('namespace', 'default')}/{claim['metadata']['name']}"
    where = ", ".join(f"{number} on {node}" for node, number in counted.by_node.items() if node is not None)
    print_line(
        f"{'' if counted.proven else 'at least '}{counted.count} more like {subject}" + (f": {where}" if where else "")
    )
    if counted.reason:
        print_line(f"{counted.reason}: {counted.message}")
    elif not counted.count and claim["kind"] == CLAIM and not (claim.get("status") or {}).get("allocations"):
        namespace = claim["metadata"].get("namespace", "default")
        given = ("" if namespace == "default" else f" -n {namespace}") + "".join(f" -f {file}" for file in files)
        print_note(f"what is in the way: devalloc explain {claim['metadata']['name']}{given}")
