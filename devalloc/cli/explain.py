"""``devalloc explain``: why a claim has what it has, or has nothing."""

from __future__ import annotations

from typing import Any

import click

from devalloc.cli import suggestions
from devalloc.cli.contents import contents, with_store_option
from devalloc.cli.options import (
    deadline_option,
    files_option,
    namespace_option,
    output_option,
    placement_option,
)
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import Failed, verb


@verb("explain")
@click.argument("name", shell_complete=suggestions.claims)
@files_option(required=False, help="Explain among these manifests, laid over the store or alone (see --no-store).")
@namespace_option
@placement_option
@deadline_option
@output_option("table", "json", "yaml")
@with_store_option
@place_options
def explain(
    name: str,
    files: tuple[str, ...],
    namespace: str,
    placement: str,
    deadline: float | None,
    output: str,
    with_store: bool | None,
    place: Place,
) -> int:
    """Say why a claim is not allocated: what became of every device, who is in the way, what to do.

    A machine that waits for a node that has room for it is explained in the same way: vm/NAME.

    Exit code 1 when the claim is not allocated, 2 when a manifest is wrong, as with solve.

    \b
    devalloc explain train
    devalloc explain train -f claim.yaml
    devalloc explain pair -f examples/unsatisfiable
    """
    from devalloc.cli.answers import show_answer_problems
    from devalloc.cli.explanation import show
    from devalloc.cli.output import dump, working
    from devalloc.controller.placing import solve_with_machines

    kind, _, bare = name.rpartition("/")
    if kind:
        from devalloc.cli.names import kind_of

        if kind_of(kind).kind not in ("DeviceClaim", "VirtualMachine"):
            told = f"only claims and machines are explained, not a {kind_of(kind).kind}"
            raise Failed(f"{told}; see: devalloc describe {name}")
    question = contents(files, namespace, place, with_store)
    waiting = question.is_of_store and not _has_devices(question.all, namespace, bare)
    with working("solving"):
        answer = solve_with_machines(
            question.all, placement=placement, deadline=deadline, admin_namespaces=question.admin_namespaces
        )
    show_answer_problems(answer, question.documents)
    is_machine = bool(kind) and kind_of(kind).kind == "VirtualMachine"
    if is_machine and (why := _why_not_placed(question.all, answer, namespace, bare)):
        click.echo(why)
        return question.code or 1
    try:
        claim = _found(answer["machines"] if is_machine else answer["claims"], namespace, bare, machine=is_machine)
    except Failed as error:
        if not question.is_of_store:
            raise
        from devalloc.cli.names import namesake
        from devalloc.cli.place import opened
        from devalloc.store.key import Key

        with opened(place) as store:
            hint = namesake(store, Key("VirtualMachine" if is_machine else "DeviceClaim", namespace, bare))
        raise Failed(error.message + (hint if "left aside" in hint else "")) from None
    if output in ("json", "yaml"):
        dump(claim, output)
    else:
        then = "apply it: devalloc apply -f " + " -f ".join(files) if files else ""
        show(claim, only_would=waiting and not is_machine and claim["allocated"], machine=is_machine, then=then)
    if question.code or question.has_errors(answer):
        return 2
    return 0 if claim["allocated"] else 1


def _why_not_placed(objects: list[Any], answer: dict[str, Any], namespace: str, name: str) -> str:
    """What to say of a machine that nobody places: its spec names its node. "" for all others."""
    from devalloc.api.inwords import machine_node, machine_phase

    if any((one["namespace"], one["name"]) == (namespace, name) for one in answer.setdefault("machines", [])):
        return ""
    for obj in objects:
        metadata = obj.get("metadata") if isinstance(obj, dict) else None
        if not isinstance(metadata, dict) or obj.get("kind") != "VirtualMachine" or metadata.get("name") != name:
            continue
        if (metadata.get("namespace") or "default") != namespace or not isinstance(obj.get("spec"), dict):
            continue
        status = obj.get("status") or {}
        words = ": ".join(str(status[part]) for part in ("reason", "message") if status.get(part))
        node, where = machine_node(obj), "" if namespace == "default" else f" -n {namespace}"
        state = (
            f"It is {machine_phase(obj)}{'; ' + words if words else ''}."
            if status
            else (f"Nobody keeps it yet: does a node plugin run on node {node}?")
        )
        return (
            f"{namespace}/{name} is not placed by devalloc, because its spec.nodeName is {node}.\n{state}\n\n"
            f"What to do: see `devalloc describe vm/{name}{where}`; without spec.nodeName a node with room is chosen."
        )
    return ""


def _has_devices(objects: list[Any], namespace: str, name: str) -> bool:
    """Whether the store's claim has its answer already."""
    for content in objects:
        metadata = content.get("metadata") if isinstance(content, dict) else None
        if not isinstance(metadata, dict) or "name" not in metadata or "kind" not in content:
            continue
        if (content["kind"], metadata.get("namespace", "default"), metadata["name"]) == (
            "DeviceClaim",
            namespace,
            name,
        ):
            return bool((content.get("status") or {}).get("allocations"))
    return False


def _found(claims: list[dict[str, Any]], namespace: str, name: str, *, machine: bool = False) -> dict[str, Any]:
    for claim in claims:
        if (claim["namespace"], claim["name"]) == (namespace, name):
            return claim
    elsewhere = ", ".join(claim["namespace"] for claim in claims if claim["name"] == name)
    known = ", ".join(f"{claim['namespace']}/{claim['name']}" for claim in claims[:10])
    advice = f"there is one in namespace {elsewhere} (-n)" if elsewhere else f"known: {known or 'none'}"
    what = "machine" if machine else "claim"
    raise Failed(f"there is no {what} {namespace}/{name}; {advice}")
