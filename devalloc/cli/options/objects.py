"""Verbs that show objects and wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from devalloc.cli.command import BadInput, parse_duration, runs, verb
from devalloc.cli.options.common import (
    all_namespaces_option,
    namespace_option,
    no_headers_option,
    output_option,
    output_option_with_jsonpath,
    passed_as,
    selector_option,
)
from devalloc.cli.options.places import complete_claims, complete_objects, target_options


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How the objects are printed."""

    output: str
    no_headers: bool = False
    show_labels: bool = False
    sort_by: str | None = None

    @property
    def is_table(self) -> bool:
        return self.output in ("table", "wide") or self.columns is not None

    @property
    def shows_objects(self) -> bool:
        """Whether any field of an object can be in it."""
        return self.columns is not None or not self.is_table

    @property
    def columns(self) -> list[tuple[str, str]] | None:
        """Header and path of each column of custom-columns. Raises BadInput."""
        if not self.output.startswith("custom-columns="):
            return None
        parts = [part.partition(":") for part in self.output.partition("=")[2].split(",")]
        if any(not (header and path) for header, _, path in parts):
            raise BadInput("custom-columns: write HEADER:PATH for each column, such as NAME:.metadata.name")
        return [(header, path) for header, _, path in parts]

    @property
    def is_data(self) -> bool:
        """Whether the output is for programs: it has the same form for changes as for objects."""
        return self.output in ("json", "yaml")

    @property
    def template(self) -> str | None:
        return self.output.removeprefix("jsonpath=") if self.output.startswith("jsonpath=") else None


@verb("get")
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="KIND [NAME...] | KIND/NAME...",
    shell_complete=complete_objects,
)
@namespace_option
@all_namespaces_option
@output_option_with_jsonpath
@no_headers_option
@selector_option
@click.option("--sort-by", metavar="JSONPATH", help="Sort by the value at a path, such as .metadata.name.")
@click.option("--show-labels", is_flag=True, help="Show the labels as the last column of tables.")
@click.option("-w", "--watch", is_flag=True, help="Then show every change, until Ctrl-C.")
@click.option("--all", "everything", is_flag=True, hidden=True, help="Same as -A.")
@target_options
@passed_as("form", OutputForm)
@runs("devalloc.cli.verbs.get")
def get() -> None:
    """List or print objects. `get all` lists the objects of all kinds of devalloc.

    `get nodes` shows the state of each node that has pools, machines or claims: Ready, Cordoned (it gets nothing new),
    NotServed (on a store: its plugin has ended), NotReady, Lost (it does not answer), Missing or Fenced. Nothing stores
    these objects.

    \b
    devalloc get pools
    devalloc get nodes
    devalloc get claims -A -o wide
    devalloc get claims -l app=web --no-headers
    devalloc get dclaim/train -o yaml
    devalloc get pools -o jsonpath='{.items[*].metadata.name}'
    """


@verb("describe")
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="KIND [NAME...] | KIND/NAME...",
    shell_complete=complete_objects,
)
@namespace_option
@target_options
@runs("devalloc.cli.verbs.describe")
def describe() -> None:
    """Show all details of objects: a claim with its devices, a pool with its users. KIND alone: of all.

    \b
    devalloc describe dclaim/train
    devalloc describe pool node-a-l40s
    """


@verb(
    "top",
    advice={
        "": "it shows nodes, claims and machines together: devalloc top; for resource usage of machines: devalloc vm "
        "top",
    },
)
@click.option(
    "--once", is_flag=True, help="Show it once and exit. This is the default if the output is not a terminal."
)
@click.option("--interval", type=parse_duration, default="2s", metavar="DURATION", help="How often to refresh.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    envvar="DEVALLOC_NAMESPACE",
    help="Only claims, machines and quotas of this namespace. On a cluster, also for users who can read only one "
    "namespace; default: the namespace of the kubeconfig's context.",
)
@output_option("table", "wide", "json", "yaml")
@target_options
@runs("devalloc.cli.verbs.top")
def top() -> None:
    """Show nodes with free and used devices, waiting claims with reasons, and machines, until Ctrl-C.

    AVAILABLE is the same number as in `devalloc get pools` and `kubectl get dpool`. A device is held, shared, free,
    unavailable (with the reason) or excluded (other partitions of its card are in use). -o wide also shows cards, and
    devices that are not free with their claims. For resource usage of machines: `devalloc vm top`.

    Keys: arrows move; enter shows the cards of a node with who holds their parts, or what is in the way of a claim; esc
    goes back; / searches; q quits.

    \b
    devalloc top
    devalloc top --once -o wide
    devalloc top -n team-a
    devalloc top --kubeconfig ~/.kube/config
    """


@verb("usage")
@click.option(
    "--month",
    default="this",
    metavar="MONTH",
    help="Month in UTC: this (default), last, or one such as 2026-11. The last twelve are kept.",
)
@click.option(
    "--by",
    type=click.Choice(["device", "machine", "class", "namespace"]),
    default="device",
    help="One row for each device that a machine used (default), each machine, each class or each namespace.",
)
@click.option("--of", "namespace", metavar="NAMESPACE", help="Only usage of this namespace; default: all.")
@click.option(
    "--controller-namespace",
    default="devalloc-system",
    metavar="NAME",
    help="Namespace of the controller on a cluster, which stores the usage.",
)
@no_headers_option
@output_option("table", "json", "yaml")
@target_options
@runs("devalloc.cli.verbs.usage")
def usage() -> None:
    """Show who used which devices, CPUs and memory in a month, and for how long.

    HOURS counts devices that were held whole, SHARES parts of devices: two shares of one device count twice. CPU-HOURS
    and GIB-HOURS are CPUs and GiB of memory that machines had, times hours. `devalloc up` and the controller of a
    cluster count. After a restart they also count the time in between, for what was held before and is still held.

    \b
    devalloc usage --month last
    devalloc usage --month 2026-11 --by namespace -o json
    devalloc usage --of team-a --kubeconfig ~/.kube/config
    """


_OPPOSITES = {"allocated=false": "released"}
"""Conditions that are not true, and the state of an object then."""


class _State(click.Choice[str]):
    """A state, also in kubectl's form: delete, condition=Allocated, condition=Allocated=false,
    jsonpath={.status.phase}=Running."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            for prefix in ("condition=", "jsonpath={.status.phase}="):
                if value.startswith(prefix):
                    value = value.removeprefix(prefix).lower().removesuffix("=true")
            value = _OPPOSITES.get(value, value)
            value = "deleted" if value == "delete" else value
        return super().convert(value, param, ctx)


@verb("wait")
@click.argument("names", nargs=-1, required=True, metavar="NAME... | KIND/NAME...", shell_complete=complete_claims)
@click.option(
    "--for",
    "state",
    type=_State(["allocated", "released", "running", "paused", "stopped", "ready", "succeeded", "failed", "deleted"]),
    help="State to wait for [default: allocated for claims, running for machines, ready (all replicas) for sets of "
    "machines, succeeded for migrations].",
)
@click.option("--timeout", type=parse_duration, default="30s", metavar="DURATION", help="Maximum time to wait.")
@namespace_option
@target_options
@runs("devalloc.cli.verbs.wait")
def wait() -> None:
    """Wait until claims are allocated, released (hold nothing) or deleted, machines running, paused or stopped, all
    replicas of a set ready, migrations succeeded or failed.

    A machine is ready when it runs and its guest, if it reports (spec.guestReports), says so; a claim when it is
    allocated. kubectl's --for=condition=NAME works, too, and --for=condition=Allocated=false for released.

    Exit code 3 when the time is up and a claim or machine has a reason why not, 1 if it has no answer yet. At once for
    an object that is deleted meanwhile, for a machine that cannot start as it is, and for a migration that is over and
    has not the state.

    \b
    devalloc wait train --for=allocated --timeout 1m
    devalloc wait vm/web
    devalloc wait claim/train --for=delete
    """
