"""``devalloc solve`` and ``explain``: which claim gets which device; why a claim has its devices, or none; and what a
field of a kind means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from devalloc.api.dedicated_pools import is_for_devalloc
from devalloc.api.fields import is_subdomain_name
from devalloc.api.findings import AT_LENGTH, as_json, finding_of, message_of
from devalloc.api.machine_reservation import reserved_entries
from devalloc.api.owner_names import POD
from devalloc.api.reasons import Reason, find_reason
from devalloc.api.views import ClaimView, MachineView, MigrationView, machine_node, machine_phase, machine_reason
from devalloc.cli.command import REFUSED, BadInput, CommandFailed, NoSuchObject
from devalloc.cli.documents import print_answer_problems
from devalloc.cli.field_reference import parse_field_path, print_field
from devalloc.cli.node_codes import node_code_advice
from devalloc.cli.object_names import fetch_object, kind_of, not_found_hint, similar_names_hint
from devalloc.cli.options.common import (
    SolveOptions,
)
from devalloc.cli.options.places import StoreTarget
from devalloc.cli.render.cells import progress_text
from devalloc.cli.render.explanation import print_answers, print_explanation
from devalloc.cli.render.output import print_content, show_spinner
from devalloc.cli.resource_claims import CLAIM as RESOURCE_CLAIM
from devalloc.cli.resource_claims import (
    TEMPLATE,
    as_claim,
    documents_to_explain,
    explain_lack,
    load_resource_objects,
    named_object,
    of_kind,
    resource_kind,
    with_claim_of,
)
from devalloc.cli.solver_input import SolverInput, load_solver_input
from devalloc.cli.target import (
    missing_controller_note,
    missing_node_note,
    open_target,
    unanswered_claims_note,
    why_not_running,
)
from devalloc.cli.terminal import print_line, print_note
from devalloc.store.errors import Forbidden, Key, StoreError


def solve(
    files: tuple[str, ...],
    namespace: str,
    options: SolveOptions,
    output: str,
    with_store: bool | None,
    place: StoreTarget,
) -> int:
    from devalloc.machines.schedule.what_if import solve_with_machines

    question = load_solver_input(files, namespace, place, with_store)
    with show_spinner("solving"):
        answer: dict[str, Any] = solve_with_machines(
            question.all, **asdict(options), admin_namespaces=question.admin_namespaces
        )
    only_files = question.is_of_store and bool(question.documents.all)
    print_answer_problems(answer, question.documents, (lambda _: False) if only_files else None)
    answer = question.of_files(answer)
    if output in ("json", "yaml"):
        print_content(answer, output)
    elif answer["claims"] or answer.get("machines"):
        if answer["claims"]:
            print_answers(answer["claims"], wide=output == "wide")
        if answer.get("machines"):
            if answer["claims"]:
                print_line()
            print_answers(answer["machines"], wide=output == "wide", machines=True)
    else:
        print_line(f"no claims{_counted(question.all)}")
    if question.code or question.has_errors(answer):
        return 2
    return 0 if all(one["allocated"] for one in (*answer["claims"], *answer.get("machines", ()))) else REFUSED


def _counted(objects: Sequence[Any]) -> str:
    """The objects other than claims, such as ": 12 DevicePool, 1 DeviceClass"."""
    kinds = Counter(str(one.get("kind")) for one in objects if isinstance(one, dict))
    return f": {', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}" if kinds else ""


CLAIM = "DeviceClaim"
MIGRATION = "VirtualMachineMigration"
REPLICA_SET = "VirtualMachineReplicaSet"


def explain(
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    options: SolveOptions,
    output: str,
    with_store: bool | None,
    place: StoreTarget,
) -> int:
    if len(words) == 1 and not files and _explain_field(words[0], place, namespace, output):
        return 0
    word, _, bare = "/".join(words).rstrip("/").rpartition("/")
    if not files and (stored := resource_kind(word)) is not None:
        return _explain_resource_claim(place, Key(stored, namespace, bare), options, output)
    try:
        if not files and (machine := _machine_of_set(place, words, namespace)) is not None:
            words = ("vm", machine)
        given = load_solver_input(files, namespace, place, with_store)
        question, kind, name = _question_about(words, given, namespace, place)
    except Forbidden as error:
        if files or not place.is_cluster:
            raise
        return _explain_as_stored(place, words, namespace, output, error)
    is_of_template = question is not given
    key = Key(kind, namespace, name)
    return _explain_answer(question, key, options, output, place, files, is_of_template=is_of_template)


def _explain_answer(
    question: SolverInput,
    key: Key,
    options: SolveOptions,
    output: str,
    place: StoreTarget,
    files: Sequence[str],
    *,
    is_of_template: bool,
) -> int:
    """Solve, and print what that says about the claim, machine or migration of ``key``; the exit code."""
    from devalloc.machines.schedule.what_if import solve_with_machines

    kind, namespace, name = key.kind, key.namespace or "default", key.name
    is_machine = kind == "VirtualMachine"
    is_done = _is_placed if is_machine else _has_devices
    waiting = question.is_of_store and not is_done(question.all, namespace, name)
    with show_spinner("solving"):
        answer = solve_with_machines(question.all, **asdict(options), admin_namespaces=question.admin_namespaces)
    _print_problems_about(key, answer, question)
    if kind == MIGRATION:
        return _explain_migration(question, answer, key, output, is_cluster=place.is_cluster)
    answers = answer.get("machines", []) if is_machine else answer["claims"]
    claim = _answer_about(key, answers, question)
    if is_machine and claim is None:
        for machine in _stored_machines(question.all, namespace, name):
            return question.code or _explain_unplaced(machine, namespace, name, output)
    if claim is None:
        if any((problem.kind, problem.name) == (kind, name) for problem in question.documents.problems):
            return 2  # its problems were already shown
        here = [one["name"] for one in answers if one["namespace"] == namespace]
        raise NoSuchObject(_no_such(place, question, key, here))
    code, message = "", ""
    if is_machine and claim["allocated"] and question.is_of_store:
        code, message = _why_not_running_on(claim["node"], _stored_machines(question.all, namespace, name))
    problem = ": ".join(filter(None, (code, message)))
    if output in ("json", "yaml"):
        if problem and claim["reason"] is None:
            claim = {**claim, "reason": code or None, "message": message or None}
        print_content(claim, output)
    else:
        only_would = claim["allocated"] and (is_of_template or waiting or (is_machine and bool(files)))
        then = _how_to_get_it(files, is_of_template=is_of_template)
        if only_would and not then and place.is_cluster:
            with open_target(place) as store:
                then = missing_controller_note(store)
        print_explanation(claim, only_would=only_would, machine=is_machine, then=then, is_cluster=place.is_cluster)
        if is_machine and claim["allocated"] and question.is_of_store:
            for silence in filter(None, map(missing_node_note, _stored_machines(question.all, namespace, name))):
                print_line(_capitalized(silence))
        if problem and (code, message) != (claim["reason"], claim["message"]):
            print_line(f"{_how_it_is(question.all, namespace, name)}: {problem}")
            if code:
                print_line()
                print_line(f"What to do: {_advice_on(code)}")
    if question.code or question.has_errors(answer):
        return 2
    return REFUSED if not claim["allocated"] else int(bool(problem))


def _answer_about(key: Key, answers: Sequence[dict[str, Any]], question: SolverInput) -> dict[str, Any] | None:
    """The answer about a claim or machine; for a pod, the one of its claims that says most."""
    name = key.namespace or "default", key.name
    keys = question.claims_of_pods.get(name, ()) if key.kind == POD else [name]
    named = [one for one in answers if (one["namespace"], one["name"]) in keys]
    # What one of a group lacks says more than that the group lacks it.
    chosen = min(named, key=lambda one: (one["allocated"], one["reason"] == Reason.GROUP_UNSATISFIABLE), default=None)
    if chosen is not None and len(named) > 1:
        print_note(f"it has {len(named)} claims; this one is {chosen['name']}:")
        if len(nodes := sorted({one["node"] for one in named if one["node"]})) > 1:
            why = f"its claims have devices of nodes {', '.join(nodes)}, so it can run on none"
            print_note(f"warning: {why}; delete the claims of all but one node")
    return chosen


def _explain_as_stored(place: StoreTarget, words: tuple[str, ...], namespace: str, output: str, why: Forbidden) -> int:
    """Show what the controller wrote on a claim or machine, to a user who may not read what it depends on. Raises what
    forbids it for anything else, or without a name."""
    word, _, name = "/".join(words).rstrip("/").rpartition("/")
    kind = kind_of(word).kind if word else CLAIM
    if not name or kind not in (CLAIM, "VirtualMachine"):
        raise why
    with open_target(place.within(namespace)) as store:
        content = fetch_object(store, Key(kind, namespace, name))
    view, machine = ClaimView(content), MachineView(content)
    status = content.get("status") or {}
    if kind == CLAIM:
        is_given, node, word = bool(status.get("allocations")), view.node, "allocated"
        reason, message = view.reason or status.get("reason"), view.message or status.get("message")
    else:
        node, word = status.get("nodeName") or machine.holder, "placed"
        is_given, (reason, message) = bool(node), why_not_running(content)
    problem = ": ".join(filter(None, (reason, message)))
    if output in ("json", "yaml"):
        about = {"allocated": is_given, "node": node, "reason": reason or None, "message": message or None}
        print_content({"namespace": namespace, "name": name, **about}, output)
    elif is_given:
        print_line(f"{namespace}/{name} is {word}{f' on node {node}' if node else ''}.")
        if problem and kind != CLAIM:
            print_line(f"{_how_it_is([content], namespace, name)}: {problem}")
    else:
        print_line(f"{namespace}/{name} is not {word}: {reason or 'no reason yet'}", str(message or ""))
    print_note(
        "this is what the controller wrote: to see what is in the way, you must be allowed to list pools and classes "
        "of the whole cluster (ClusterRole view, by a ClusterRoleBinding)"
    )
    return REFUSED if not is_given else int(bool(problem) and kind != CLAIM)


def _print_problems_about(subject: Key, answer: dict[str, Any], question: SolverInput) -> None:
    """Print the problems of the object to explain, without the warnings that its explanation repeats."""

    def key(one: Mapping[str, Any]) -> tuple[str, str]:
        return one.get("namespace") or "default", str(one.get("name"))

    repeated = {warning for one in answer["claims"] for warning in one.get("warnings", ()) if key(one) == subject[1:]}

    def is_own(one: Mapping[str, Any]) -> bool:
        return (one.get("kind"), *key(one)) == tuple(subject)

    rest = [one for one in answer["problems"] if not is_own(one) or one["message"] not in repeated]
    print_answer_problems({**answer, "problems": rest}, question.documents, lambda one: is_own(one.to_dict()))


def _how_to_get_it(files: Sequence[str], *, is_of_template: bool) -> str:
    if is_of_template:
        return "name the template in a pod, for which Kubernetes makes such a claim."
    return "apply it: devalloc apply -f " + " -f ".join(files) if files else ""


def _question_about(
    words: tuple[str, ...], question: SolverInput, namespace: str, place: StoreTarget
) -> tuple[SolverInput, str, str]:
    """The input with what the words name, and its kind and name; for a template, with the claim of one. Raises
    CommandFailed."""
    kind, name = _object_to_explain(words, question, namespace)
    if kind == POD and (question.is_of_store or (namespace, name) not in question.claims_of_pods):
        pods = [pod for within, pod in question.claims_of_pods if within == namespace and not question.is_of_store]
        how = "; explain its claims: devalloc explain resourceclaim/NAME, or give its manifests with -f"
        how = similar_names_hint(name, pods) or how
        raise NoSuchObject(f"there is no pod {namespace}/{name} with claims in manifests{how}")
    if kind not in (RESOURCE_CLAIM, TEMPLATE):
        return question, kind, name
    if question.is_of_store:
        raise CommandFailed(f"{name} is a {kind}: devalloc explain {kind.lower()}/{name} -n {namespace}")
    if kind == TEMPLATE:
        if (template := named_object(question.given, kind, namespace, name)) is None:
            names = _names(question, kind, namespace, of_files=True)
            raise NoSuchObject(_no_such(place, question, Key(kind, namespace, name), names))
        question = replace(question, all=with_claim_of(template, question.all))
    return question, RESOURCE_CLAIM, name


def _explain_resource_claim(place: StoreTarget, key: Key, options: SolveOptions, output: str) -> int:
    """Show whether a ResourceClaim of a cluster or store, or one of a template, gets devices beside those that have
    any."""
    from devalloc_solver.dra import solve_manifests

    objects = load_resource_objects(place)
    content = named_object(objects, key.kind, key.namespace or "default", key.name)
    if content is None:
        there = [one["metadata"]["name"] for one in of_kind(objects, key.kind)]
        raise NoSuchObject(f"there is no {key.kind} {key.namespace}/{key.name}{similar_names_hint(key.name, there)}")
    claim = as_claim(content)
    with show_spinner("solving"):
        answer = solve_manifests(
            [*documents_to_explain(claim, objects), claim], placement=options.placement, deadline=options.deadline
        )
    named = [each for each in answer["claims"] if (each["namespace"], each["name"]) == (key.namespace, key.name)]
    one: dict[str, Any] = {**named[0]}
    is_allocated, is_labelled = bool((claim.get("status") or {}).get("allocation")), is_for_devalloc(claim)
    if place.is_cluster and is_labelled and not is_allocated:
        with open_target(place) as store:
            unanswered = unanswered_claims_note(store)
        one = {**one, "warnings": [*one.get("warnings", ()), *([unanswered] if unanswered else [])]}
    if not one["allocated"]:
        reason, finding = explain_lack(claim, objects, str(one["reason"]), finding_of(one))
        one = {**one, "reason": reason, **as_json(finding)}
    if output in ("json", "yaml"):
        print_content(one, output)
    elif one["reason"] == Reason.NOT_ADOPTED:
        print_line(f"{key.namespace}/{key.name} is not allocated: {one['reason']}", message_of(finding, AT_LENGTH))
        for warning in one.get("warnings", ()):
            print_line(f"warning: {warning}")
    else:
        then = "`devalloc up` allocates it."
        if content["kind"] == TEMPLATE:
            then = _how_to_get_it((), is_of_template=True)
        elif place.is_cluster:
            who = "devalloc's controller" if is_labelled else "kube-scheduler"
            then = f"{who} allocates it for a pod; `kubectl describe` shows its Events."
        print_explanation(one, only_would=not is_allocated, then=then, is_cluster=place.is_cluster)
    return 0 if one["allocated"] else REFUSED


def _why_not_running_on(node: str | None, machines: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """Code and message why a machine does not run that is placed on the node; both are empty if it only would be: its
    status then says why it waited before."""
    for machine in machines:
        view = MachineView(machine)
        is_reserved = view.status.get("nodeName") == node and bool(reserved_entries(machine))
        if node is not None and (is_reserved or view.holder == node):
            return why_not_running(machine)
    return "", ""


def _how_it_is(objects: list[Any], namespace: str, name: str) -> str:
    """The first words about a machine that is not as it should be."""
    phase = next(map(machine_phase, _stored_machines(objects, namespace, name)), "")
    words = {"Running": "It runs, but", "Paused": "Its CPUs stand still", "Unknown": "It may not run"}
    return words.get(phase, "It does not run")


def _is_placed(objects: list[Any], namespace: str, name: str) -> bool:
    """Whether the store's machine has a node already, or need not have one: it is to be stopped."""
    for machine in _stored_machines(objects, namespace, name):
        view = MachineView(machine)
        return bool(view.status.get("nodeName") or view.holder or view.spec.get("running") is False)
    return False


def _advice_on(code: str) -> str:
    """What to do about a reason of a machine, which the controller or its node gave."""
    reason = find_reason(code)
    if reason is not None and reason.advice:
        return reason.advice
    return node_code_advice(code) or f"docs/node-codes.md says for each code of a node what to do; see {code} there."


def _explain_migration(
    question: SolverInput, answer: dict[str, Any], key: Key, output: str, *, is_cluster: bool
) -> int:
    """Show why a migration has no target, or how far it is. Raises CommandFailed if there is none of that name."""
    namespace, name = key.namespace or "default", key.name
    waiting = answer.get("migrations", [])
    one = next((each for each in waiting if (each["namespace"], each["name"]) == (namespace, name)), None)
    if one is not None and output in ("json", "yaml"):
        print_content(one, output)
    elif one is not None and not one["allocated"] and one.get("blockers"):
        print_explanation(one, machine=True, is_cluster=is_cluster)
    elif one is not None and not one["allocated"]:
        reason = find_reason(one["reason"])
        print_line(f"{namespace}/{name} waits: {one['reason']}: {one['message']}")
        if reason is not None and reason.advice:
            print_line(f"What to do: {reason.advice}")
    elif one is not None:
        print_line(f"{namespace}/{name}: node {one['node']} has room for the machine, and would be its target")
    if one is not None:
        return 0 if one["allocated"] else REFUSED
    contents = [each for each in question.all if isinstance(each, dict) and each.get("kind") == MIGRATION]
    views = [MigrationView(each) for each in contents]
    view = next((each for each in views if each.key == (namespace, name)), None)
    if view is None:
        near = similar_names_hint(name, [each.key[1] for each in views if each.key[0] == namespace])
        raise NoSuchObject(f"there is no migration {namespace}/{name}{near}")
    status = view.status
    words = ": ".join(str(status[part]) for part in ("reason", "message") if status.get(part))
    progress = progress_text(dict(view.content))
    print_line("; ".join(part for part in (f"{namespace}/{name} is {view.phase}", words, progress) if part))
    return 1 if view.phase == "Failed" else 0


def _explain_field(word: str, place: StoreTarget, namespace: str, output: str) -> bool:
    """Explain KIND.FIELD; False if the word is something else. Raises BadInput if the kind has no such field."""
    field = parse_field_path(word)
    if field is None or _is_claim(word, place, namespace):
        return False
    print_field(*field, output)
    return True


def _is_claim(name: str, place: StoreTarget, namespace: str) -> bool:
    """Whether there is a claim of that name. A store that cannot be read has none: fields need no store."""
    if not is_subdomain_name(name):
        return False
    try:
        with open_target(place) as store:
            store.get(CLAIM, namespace, name)
    except (click.ClickException, StoreError, OSError, ImportError):
        return False
    return True


def _object_to_explain(words: tuple[str, ...], question: SolverInput, namespace: str) -> tuple[str, str]:
    """The kind and name that NAME, KIND/NAME or KIND NAME stand for; without words, the only claim of the manifests.
    Raises BadInput, CommandFailed."""
    names = _names(question, CLAIM, namespace)
    if not words:
        for kind in (CLAIM, RESOURCE_CLAIM, POD, TEMPLATE):
            own = _names(question, kind, None, of_files=True)
            if len(own) == 1:
                return kind, own[0]
        raise BadInput(
            f"name a claim, or a machine as vm/NAME, for example: devalloc explain train{similar_names_hint('', names)}"
        )
    if len(words) > 2 or (len(words) == 2 and "/" in "".join(words)):
        raise BadInput(f"name one claim or machine: NAME, KIND/NAME or KIND NAME, not {' '.join(words)}")
    kind, _, name = "/".join(words).rstrip("/").rpartition("/")
    if (of_kubernetes := resource_kind(kind)) is not None:
        return of_kubernetes, name
    if kind.lower() in ("pod", "pods", "po"):
        return POD, name
    if not kind:
        is_claim = name in names or name in _names(question, RESOURCE_CLAIM, namespace)
        if not is_claim and (namespace, name) in question.claims_of_pods:
            return POD, name
        if not is_claim and name in _names(question, TEMPLATE, namespace, of_files=True):
            return TEMPLATE, name
        if name not in names and (named_kind := _kind_or_none(name)) is not None:
            fields = f"; for its fields: devalloc explain {name}.spec"
            listed = similar_names_hint("", _names(question, named_kind, namespace))
            raise BadInput(f"which {name}? Write {name}/NAME{listed}{fields}")
        return CLAIM, name
    kind_name = kind_of(kind).kind
    if kind_name not in (CLAIM, "VirtualMachine", MIGRATION):
        message = f"`devalloc explain` explains claims, machines and migrations, not a {kind_name}"
        raise CommandFailed(f"{message}; see: devalloc describe {kind}/{name}")
    return kind_name, name


def _machine_of_set(place: StoreTarget, words: tuple[str, ...], namespace: str) -> str | None:
    """The machine that explains a set of machines: one that is not ready, if there is any. None if the words name
    something else. Raises NotFound, and CommandFailed for a set without machines."""
    from devalloc.machines.replica_sets import is_ready, owner_of

    word, _, name = "/".join(words).rstrip("/").rpartition("/")
    try:
        if not word or kind_of(word).kind != REPLICA_SET:
            return None
    except BadInput:
        return None
    with open_target(place.within(namespace)) as store:
        uid = fetch_object(store, Key(REPLICA_SET, namespace, name))["metadata"]["uid"]
        listed = store.list("VirtualMachine", namespace).objects
    machines = [one for one in listed if (owner_of(one) or ("", ""))[1] == uid]
    if not machines:
        raise CommandFailed(f"set {namespace}/{name} has no machines; see: devalloc describe vmrs/{name}")
    ready = sum(map(is_ready, machines))
    chosen = min(machines, key=lambda one: (is_ready(one), MachineView(one).key))
    print_note(f"{ready} of its {len(machines)} machines are ready; this one is {MachineView(chosen).key[1]}:")
    return MachineView(chosen).key[1]


def _kind_or_none(word: str) -> str | None:
    """The kind that a word means, if `explain` explains objects of it."""
    try:
        kind = kind_of(word).kind
    except BadInput:
        return None
    return kind if kind in (CLAIM, "VirtualMachine", MIGRATION) else None


def _names(question: SolverInput, kind: str, namespace: str | None, *, of_files: bool = False) -> list[str]:
    """Names of the objects of a kind, in one namespace or (None) in all."""
    contents = question.given if of_files else question.all
    return [name for within, name in _names_of_kind(contents, kind) if namespace in (None, within)]


def _names_of_kind(contents: list[Any], kind: str) -> list[tuple[str, str]]:
    """Namespace and name of the objects of a kind."""
    heads = [
        obj["metadata"]
        for obj in contents
        if isinstance(obj, dict) and obj.get("kind") == kind and isinstance(obj.get("metadata"), dict)
    ]
    return [(str(head.get("namespace") or "default"), str(head.get("name"))) for head in heads]


def _no_such(place: StoreTarget, question: SolverInput, key: Key, names: list[str]) -> str:
    """The message for a claim or machine that does not exist, with suggestions. ``names``: those that exist."""
    what = {"VirtualMachine": "machine", TEMPLATE: "template"}.get(key.kind, "claim")
    message = f"there is no {what} {key.namespace}/{key.name}"
    other = CLAIM if what == "machine" else "VirtualMachine"
    if key.name in _names(question, other, key.namespace):
        short = "vm" if other == "VirtualMachine" else "claim"
        return f"{message}; there is a {other} of that name: devalloc explain {short}/{key.name}"
    elsewhere = [namespace for namespace, name in _names_of_kind(question.all, key.kind) if name == key.name]
    if elsewhere:
        return f"{message}; there is one in namespace {', '.join(elsewhere)} (-n)"
    if question.is_of_store:
        with open_target(place) as store:
            return message + not_found_hint(store, key)
    return message + similar_names_hint(key.name, names)


def _explain_unplaced(machine: dict[str, Any], namespace: str, name: str, output: str) -> int:
    """Print what became of a machine that devalloc places nowhere now: it is not to run, has ended, or its spec names
    its node; the exit code."""
    (code, message), phase, node = machine_reason(machine), machine_phase(machine), machine_node(machine)
    words, where = ": ".join(filter(None, (code, message))), "" if namespace == "default" else f" -n {namespace}"
    state = f"It is {phase}{'; ' + words if words else ''}."
    is_over, advice = True, f"`devalloc start vm/{name}{where}`."
    if phase == "Deleting":
        why, advice = "is not placed, because it is being deleted", ""
    elif MachineView(machine).spec.get("running") is False:
        why = "is not placed, because its spec.running is false"
    elif MachineView(machine).has_ended:
        why = "is not placed again, because it ended and its spec.restartPolicy is Never"
    else:
        is_over, why = False, f"is not placed by devalloc, because its spec.nodeName is {node}"
        state = _capitalized(missing_node_note(machine)) or state
        advice = f"see `devalloc describe vm/{name}{where}`; without spec.nodeName, devalloc chooses one with room."
    runs = phase == "Running" and not is_over
    if output in ("json", "yaml"):
        entry: dict[str, Any] = {"namespace": namespace, "name": name, "allocated": not is_over, "node": node or None}
        entry |= {"allocations": [], "oneOf": None, "reason": code or None, "message": message or None}
        print_content(entry, output)
    else:
        todo = ("", f"What to do: {advice}") if advice and (words or not runs) else ()
        print_line(f"{namespace}/{name} {why}.", state, *todo)
    return int(bool(words)) if runs else REFUSED


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _stored_machines(objects: list[Any], namespace: str, name: str) -> Iterator[dict[str, Any]]:
    """The machine of that name; none if it cannot be read."""
    for obj in objects:
        metadata = obj.get("metadata") if isinstance(obj, dict) else None
        if not isinstance(metadata, dict) or obj.get("kind") != "VirtualMachine" or metadata.get("name") != name:
            continue
        if (metadata.get("namespace") or "default") == namespace and isinstance(obj.get("spec"), dict):
            yield obj


def _has_devices(objects: list[Any], namespace: str, name: str) -> bool:
    """Whether the store's claim already has its devices."""
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
