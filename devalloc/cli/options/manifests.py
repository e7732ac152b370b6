"""Verbs that read manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from devalloc.cli.command import VerbGroup, runs, verb
from devalloc.cli.options.common import (
    CountOptions,
    LabelTest,
    SolveOptions,
    all_namespaces_option,
    files_option,
    manifests_option,
    namespace_option,
    output_option,
    passed_as,
    selector_option,
    settings_options,
    store_option,
)
from devalloc.cli.options.places import complete_claims, complete_objects, target_options, with_store_option
from devalloc.inventory.capacity.config import CapacityConfig, parse_size
from devalloc.settings import EXISTING_FOLDER, PathTo, group, setting

_ON_A_CLUSTER = dict.fromkeys(("--kubeconfig", "--context"), "this verb is about a store of this host; use kubectl")


@verb("validate")
@manifests_option(required=True)
@output_option("table", "json", "yaml")
@runs("devalloc.cli.verbs.apply")
def validate() -> None:
    """Check manifests without a store: fields, amounts, expressions. Reports every error, not only the first.

    Of an object of resource.k8s.io it reports the first wrong field, and every selector that does not compile.

    \b
    devalloc validate -f examples/whole-gpu
    """


@dataclass(frozen=True, slots=True)
class ObjectSelection:
    """Which objects a user names: by kind and name, by manifests, or all of a kind."""

    what: tuple[str, ...]
    files: tuple[str, ...]
    everything: bool
    selected: LabelTest | None
    namespace: str
    all_namespaces: bool


@verb("delete", advice=_ON_A_CLUSTER)
@click.argument("what", nargs=-1, metavar="KIND NAME... | KIND/NAME...", shell_complete=complete_objects)
@files_option(required=False)
@click.option("--all", "everything", is_flag=True, help="Every object of the kind.")
@selector_option
@click.option("--ignore-not-found", is_flag=True, help="Do not fail if an object does not exist.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, but delete nothing.")
@namespace_option
@all_namespaces_option
@store_option
@passed_as("selection", ObjectSelection)
@runs("devalloc.cli.verbs.apply")
def delete() -> None:
    """Delete objects. A claim's devices are free at once, or when its node has released them.

    \b
    devalloc delete dclaim/train
    devalloc delete -f examples/whole-gpu
    devalloc delete claims --all -A
    """


@verb("apply", advice=_ON_A_CLUSTER)
@manifests_option(required=True)
@click.option("--dry-run", is_flag=True, help="Show what would change, but change nothing.")
@namespace_option
@store_option
@runs("devalloc.cli.verbs.apply")
def apply() -> None:
    """Create or update the objects of manifests in the store. Invalid objects are reported; the others are applied.

    \b
    devalloc apply -f examples/whole-gpu
    cat claim.yaml | devalloc apply -f - -n team-a
    """


@verb("solve")
@manifests_option(required=False)
@namespace_option
@settings_options(SolveOptions, "options")
@output_option("table", "wide", "json", "yaml")
@with_store_option
@target_options
@runs("devalloc.cli.verbs.explain")
def solve() -> None:
    """Decide which claim gets which device, and which machine which node. Writes nothing.

    Without -f: for all claims of the store or cluster. With -f: for the claims of the manifests, as if you applied them
    to the cluster of --kubeconfig or to the store. The manifests are used alone if they contain pools and no cluster is
    named, or if there is no store. For a pod, the claims count that Kubernetes would create from its templates.

    Exit code 3 if a claim gets nothing, 2 if a manifest is invalid; the valid ones are used anyway.

    \b
    devalloc solve -f claim.yaml
    devalloc solve -f examples/whole-gpu
    devalloc solve -f fleet/ -f claim.yaml -o json
    devalloc solve -f claim.yaml --kubeconfig ~/.kube/config
    """


@verb("explain")
@click.argument(
    "words",
    nargs=-1,
    metavar="NAME | KIND/NAME | KIND NAME | KIND.FIELD",
    shell_complete=complete_claims,
)
@files_option(required=False, help="Explain a claim of these manifests, on top of the store or alone (see --no-store).")
@namespace_option
@settings_options(SolveOptions, "options")
@output_option("table", "json", "yaml")
@with_store_option
@target_options
@runs("devalloc.cli.verbs.explain")
def explain() -> None:
    """Show why a claim is not allocated: how many devices each rule leaves, what is in the way, what to do.

    resourceclaim/NAME, resourceclaimtemplate/NAME and, with -f, pod/NAME explain claims of Kubernetes beside those
    that are allocated. vm/NAME explains why a machine waits for a node with enough room, migration/NAME why one
    that runs does not move to another node, and vmrs/NAME a machine of the set that is not ready.

    KIND.FIELD, such as claim.spec.claims.limits, shows what a field means, with its type, unit and default, unless a
    claim has that very name.

    Exit code 3 if the claim or machine gets nothing, 1 if the machine does not run as it should, 2 if a manifest is
    invalid, as with solve.

    \b
    devalloc explain train
    devalloc explain train -f claim.yaml
    devalloc explain pair -f examples/unsatisfiable
    devalloc explain vm/web
    devalloc explain claim.spec.claims.limits
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What a host offers to machines."""

    is_asked: bool = setting(
        "Show what this host offers to machines, instead of counting claims.", flag="--host", default=False
    )
    node_name: str | None = setting("With --host: the name of this node.", metavar="NAME", unset="the host name")
    sysfs_root: Path = setting(
        "With --host: read this tree instead of the host's: the folder that contains sys and proc.",
        type=EXISTING_FOLDER,
        default=Path("/"),
        metavar="DIR",
    )
    socket: Path | None = setting(
        "With --host: the socket of the node plugin, to count machines that have no object in the store, too.",
        type=PathTo(),
        metavar="PATH",
        env="DEVALLOC_NODE_SOCKET",
        unset="that of this host's plugin, if any",
    )
    pull: int | None = setting(
        "With --host: ask whether an image of this size may be pulled. Exit code 1, with the numbers, if it does not "
        "fit beside the images, or on the disk.",
        type=parse_size,
        metavar="SIZE",
    )
    limits: CapacityConfig = group(CapacityConfig)


@verb("capacity")
@click.argument("name", required=False, shell_complete=complete_claims)
@files_option(required=False, help="The claim, and what else to take into account: a file, a folder, or -.")
@namespace_option
@output_option("table", "json", "yaml")
@with_store_option
@target_options
@settings_options(CountOptions, "options")
@settings_options(HostOptions, "host")
@runs("devalloc.cli.verbs.capacity")
def capacity() -> None:
    """Count how many more claims like this one fit beside all allocated claims. Pending claims do not count.

    The result respects ResourceQuotas.

    The claim is in the store (NAME) or in the manifests: a DeviceClaim, a ResourceClaim or a ResourceClaimTemplate
    (resourceclaimtemplate/NAME) of pods. Kubernetes itself enforces quotas of the latter two. devalloc
    counts on the pools of the store or cluster, or on the manifests alone if they contain pools.

    With --host: the CPUs, memory, disk, network and disk bandwidth, and GPUs that this host offers to machines: how
    much can be promised (oversubscription), is promised to the store's machines, and is left. The limits and ratios
    below apply.

    \b
    devalloc capacity notebook
    devalloc capacity -f claim.yaml
    devalloc capacity notebook -f examples/whole-gpu
    devalloc capacity --host --network-limit 10Gbps --oversub-cpu 2
    """


@click.group("dra", cls=VerbGroup)
def dra() -> None:
    """Allocate claims of resource.k8s.io/v1 from manifests; writes nothing."""


@verb("allocate")
@files_option(required=True)
@click.option("--node", required=True, metavar="NAME", help="The node; its labels come from its Node in the files.")
@output_option("table", "json", "yaml")
@runs("devalloc.cli.verbs.dra")
def allocate() -> None:
    """Allocate all pending claims on one node, or none of them, as kube-scheduler does for the claims of a pod.

    The files contain ResourceSlices, DeviceClasses, ResourceClaims, and Nodes if labels matter. A claim with an
    allocation keeps it, and its devices are in use. JSON and YAML output is a list with an AllocationResult or null for
    each claim, in order.

    Exit code 3 if the claims do not fit on the node, 2 if a manifest is invalid; valid manifests are used anyway.

    \b
    devalloc dra allocate -f examples/dra --node example-a
    devalloc dra allocate -f slices.json -f claim.yaml --node example-a -o json
    """


dra.add_command(allocate)
