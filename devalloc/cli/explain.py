"""``devalloc explain``: why a claim has what it has, or has nothing."""

from __future__ import annotations

from typing import Any

import click

from devalloc.cli import suggestions
from devalloc.cli.contents import Contents, contents, with_store_option
from devalloc.cli.options import (
    deadline_option,
    files_option,
    namespace_option,
    output_option,
    placement_option,
)
from devalloc.cli.place import Place, place_options
from devalloc.cli.verb import BadInput, Failed, verb
from devalloc.store.key import Key

CLAIM = "DeviceClaim"
RESOURCE_CLAIM = "ResourceClaim"


@verb("explain")
@click.argument("words", nargs=-1, metavar="NAME | KIND/NAME | KIND NAME", shell_complete=suggestions.claims)
@files_option(required=False, help="Explain among these manifests, laid over the store or alone (see --no-store).")
@namespace_option
@placement_option
@deadline_option
@output_option("table", "json", "yaml")
@with_store_option
@place_options
def explain(
    words: tuple[str, ...],
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
    devalloc explain vm/web
    """
    from devalloc.cli.answers import show_answer_problems
    from devalloc.cli.explanation import show
    from devalloc.cli.output import dump, working
    from devalloc.controller.placing import solve_with_machines

    question = contents(files, namespace, place, with_store)
    kind, name = _meant(words, question, namespace)
    if kind == RESOURCE_CLAIM and question.is_of_store:
        raise Failed(_not_answered(place, Key(kind, namespace, name)))
    waiting = question.is_of_store and not _has_devices(question.all, namespace, name)
    with working("solving"):
        answer = solve_with_machines(
            question.all, placement=placement, deadline=deadline, admin_namespaces=question.admin_namespaces
        )
    show_answer_problems(answer, question.documents)
    is_machine = kind == "VirtualMachine"
    if is_machine and (why := _why_not_placed(question.all, answer, namespace, name)):
        click.echo(why)
        return question.code or 1
    answers = answer.get("machines", []) if is_machine else answer["claims"]
    claim = next((one for one in answers if (one["namespace"], one["name"]) == (namespace, name)), None)
    if claim is None:
        if any((problem.kind, problem.name) == (kind, name) for problem in question.documents.problems):
            return 2  # what is wrong with it was shown
        here = [one["name"] for one in answers if one["namespace"] == namespace]
        raise Failed(_no_such(place, question, Key(kind, namespace, name), here))
    if output in ("json", "yaml"):
        dump(claim, output)
    else:
        then = "apply it: devalloc apply -f " + " -f ".join(files) if files else ""
        show(claim, only_would=waiting and not is_machine and claim["allocated"], machine=is_machine, then=then)
    if question.code or question.has_errors(answer):
        return 2
    return 0 if claim["allocated"] else 1


def _meant(words: tuple[str, ...], question: Contents, namespace: str) -> tuple[str, str]:
    """The kind and name that NAME, KIND/NAME or KIND NAME mean; without words the only claim of the manifests. Raises
    BadInput, Failed."""
    from devalloc.cli.names import among, kind_of

    names = _names(question, CLAIM, namespace)
    if not words:
        own = _names(question, CLAIM, None, of_files=True)
        if len(own) == 1:
            return CLAIM, own[0]
        raise BadInput(f"name a claim, or a machine as vm/NAME, such as: devalloc explain train{among('', names)}")
    if len(words) > 2 or (len(words) == 2 and "/" in "".join(words)):
        raise BadInput(f"one claim or machine at a time: NAME, KIND/NAME or KIND NAME, and not {' '.join(words)}")
    kind, _, name = "/".join(words).rpartition("/")
    if kind.lower().partition(".")[0] in ("resourceclaim", "resourceclaims"):
        return RESOURCE_CLAIM, name
    if not kind:
        if name not in names and _is_kind(name):
            raise BadInput(f"which {name}? Write {name}/NAME{among('', names)}")
        return CLAIM, name
    found = kind_of(kind).kind
    if found not in (CLAIM, "VirtualMachine"):
        told = f"only claims and machines are explained, not a {found}"
        raise Failed(f"{told}; see: devalloc describe {kind}/{name}")
    return found, name


def _is_kind(word: str) -> bool:
    from devalloc.cli.names import kind_of

    try:
        return kind_of(word).kind in (CLAIM, "VirtualMachine")
    except BadInput:
        return False


def _names(question: Contents, kind: str, namespace: str | None, *, of_files: bool = False) -> list[str]:
    """Names of the objects of a kind, in that namespace or (None) in all."""
    contents: list[Any] = [document.content for document in question.documents.all] if of_files else question.all
    return [name for within, name in _places(contents, kind) if namespace in (None, within)]


def _places(contents: list[Any], kind: str) -> list[tuple[str, str]]:
    """Namespace and name of the objects of a kind."""
    heads = [
        obj["metadata"]
        for obj in contents
        if isinstance(obj, dict) and obj.get("kind") == kind and isinstance(obj.get("metadata"), dict)
    ]
    return [(str(head.get("namespace") or "default"), str(head.get("name"))) for head in heads]


def _not_answered(place: Place, key: Key) -> str:
    """Why a ResourceClaim of a store or a cluster is not explained, and what to do."""
    from devalloc.cli.names import fetched
    from devalloc.cli.place import opened
    from devalloc.controller.foreign import why
    from devalloc_solver.dialects import RESOURCE_CLAIMS

    if place.is_cluster:
        seen = f"kubectl describe resourceclaim {key.name} -n {key.namespace}"
        return f"ResourceClaims of a cluster are not explained here; their Events say why they wait: {seen}"
    with opened(place) as store:
        fetched(store, key)
    return f"{key} is not allocated here: {why(RESOURCE_CLAIMS)}"


def _no_such(place: Place, question: Contents, key: Key, names: list[str]) -> str:
    """What to say of a claim or machine that is not there, and what else could be meant. ``names``: of those that
    are."""
    from devalloc.cli.names import among, namesake
    from devalloc.cli.place import opened

    what = "machine" if key.kind == "VirtualMachine" else "claim"
    told = f"there is no {what} {key.namespace}/{key.name}"
    other = CLAIM if what == "machine" else "VirtualMachine"
    if key.name in _names(question, other, key.namespace):
        short = "vm" if other == "VirtualMachine" else "claim"
        return f"{told}; there is a {other} of that name: devalloc explain {short}/{key.name}"
    elsewhere = [namespace for namespace, name in _places(question.all, key.kind) if name == key.name]
    if elsewhere:
        return f"{told}; there is one in namespace {', '.join(elsewhere)} (-n)"
    if question.is_of_store:
        with opened(place) as store:
            return told + namesake(store, key)
    return told + among(key.name, names)


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
