"""Which pending claims may be given devices: ResourceQuotas by device count, and admin access by namespace.

Allocated devices count first, then the most that each pending claim may get, earlier claims first (S17). So claims that
are answered together never exceed a quota, whatever the solver chooses. A claim that waits for something else takes
nothing from later claims: they are solved again without it. A claim whose search continues keeps its turn. Admission
runs before the solver and not in it: the most devices that a claim may get is known without placing it, and the order
of claims does not depend on where there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from devalloc.api import host_pool_names, meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.decode import decode, normalize
from devalloc.api.findings import HOLDERS, Finding, claim_ref, message_of, text_fact
from devalloc.api.owner_names import is_object, owner_of, read_name
from devalloc.api.reasons import STILL_SEARCHING, Reason, refusal_answer
from devalloc.api.unreadable_claims import claim_key_or_none
from devalloc.api.views import ClaimKey, ClaimView, admin_class_names, device_claims_in
from devalloc_solver.pipeline import quota
from devalloc_solver.pipeline.quota import Bound

AdminNamespaces = Literal["all", "labelled"]
_PASSES = 16
"""How often claims that find no place let those behind them ask; the rest wait for the next round."""
_SECONDS = 5.0
"""After which no further pass is begun."""
_OF_THE_BATCH = {
    *(reason.value for reason in Reason if reason.is_transient),
    Reason.GROUP_UNSATISFIABLE.value,
    Reason.SEARCH_LIMIT.value,
}
"""Reasons of claims that could have found a place if others of their batch, or of their group, had asked for less."""
Answer = dict[str, Any]
Refusal = tuple[Reason, str]
"""Why a claim is not solved, and the message."""
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SortedDocuments:
    """Documents, told apart by whether they can be looked into before they are decoded."""

    readable: Sequence[Object]
    """As the decoder reads them, so that no other claim is seen here than the solver sees: each claim that can be
    decoded is among them."""
    rest: Sequence[Any]
    originals: Mapping[int, Any]
    """By id of a readable one: the document itself, if it is written otherwise than it is read."""

    def written(self, document: Object) -> Any:
        """The document that a readable one was read from, for the solver, which warns of how it is written."""
        return self.originals.get(id(document), document)


def sort_documents(documents: Iterable[Any]) -> SortedDocuments:
    """Those that can be looked into before they are decoded, and the rest."""
    readable: list[Object] = []
    rest: list[Any] = []
    originals: dict[int, Any] = {}
    for document in documents:
        content = _readable_content(document)
        if content is None or not _is_well_formed(content):
            rest.append(document)
            continue
        readable.append(content)
        if content is not document:
            originals[id(content)] = document
    return SortedDocuments(readable, rest, originals)


def _readable_content(document: Any) -> Object | None:
    """A document as the decoder reads it. Pools as they are, for they are large, and only those of what nodes have for
    machines are looked into."""
    if not isinstance(document, Mapping):
        return None
    content = document if isinstance(document, dict) else dict(document)
    is_plain = content.get("kind") == "DevicePool" and host_pool_names.node_of_host_pool(content) is None
    return content if is_plain else normalize(content)


def _is_well_formed(content: Object) -> bool:
    """Whether it is well formed as far as it is looked into before it is decoded. All that can be decoded is, of the
    kinds that are looked into."""
    metadata = content.get("metadata")
    if not isinstance(metadata, Mapping):
        return False
    name, namespace = metadata.get("name"), metadata.get("namespace", "")
    if not isinstance(name, str) or not isinstance(namespace, str):
        return False
    if is_admission_object(content):
        return True
    if read_name(name) != name or read_name(namespace) != namespace:  # the solver answers by another name
        return False
    annotations, finalizers = metadata.get("annotations", {}), metadata.get("finalizers", [])
    return (
        isinstance(metadata.get("creationTimestamp", ""), str)
        and isinstance(annotations, Mapping)
        and all(isinstance(text, str) for text in annotations.values())
        and isinstance(finalizers, list)
        and all(isinstance(content.get(part, {}), Mapping) for part in ("spec", "status"))
    )


def relevant_content(doc: Object) -> Any:
    """What of a Namespace or ResourceQuota is looked at, to tell whether a change of it matters; None for nothing."""
    if _is_namespace(doc):
        return _is_labelled(doc) or None
    return (bounds, quota.quota_status(doc)) if (bounds := quota.bounds_of(doc)) else None


_KINDS = ("Namespace", quota.KIND)  # no set: a kind can be anything in a file


def is_admission_object(doc: Mapping[str, Any]) -> bool:
    """Whether it is of a kind that only this module reads."""
    return doc.get("kind") in _KINDS and doc.get("apiVersion") == "v1"


def _is_namespace(doc: Mapping[str, Any]) -> bool:
    return doc.get("kind") == "Namespace" and doc.get("apiVersion") == "v1"


def _is_labelled(namespace: Object) -> bool:
    labels = namespace["metadata"].get("labels")
    return isinstance(labels, dict) and labels.get(meta.ADMIN_ACCESS) == "true"


@dataclass(frozen=True, slots=True)
class _Unit:
    """Claims that get devices together or not at all."""

    members: Sequence[Object]
    wants: Mapping[Bound, Mapping[ClaimKey, int | str]]
    """What the members that count for a bound may get at most."""

    @property
    def keys(self) -> frozenset[ClaimKey]:
        return frozenset(ClaimView(claim).key for claim in self.members)


def solve_admitted(
    documents: Sequence[Object],
    solve: Callable[[list[Object]], Answer],
    admin_namespaces: AdminNamespaces = "all",
    kept_out: Mapping[ClaimKey, Refusal] | None = None,
    unread: Sequence[Any] = (),
) -> Answer:
    """The solver's answers to admitted claims, and for the others an answer with a reason of admission.

    ``documents``: the solver's input, with groups as they are placed, and with Namespaces and ResourceQuotas.
    ``kept_out``: claims that are not to be asked for, with reason and message; nor is who is in a group with them.
    ``unread``: the rest of ``sort_documents``, which ``solve`` adds. Devices of claims among it count as in use, and
    the solver refuses a claim of the same name as one of them. Quotas count claims that users made: not what is of a
    machine, and not what a claim gets instead of what it has.
    """
    relevant = [doc for doc in documents if not is_admission_object(doc)]
    bounds = {bound: most for doc in documents if quota.is_quota(doc) for bound, most in quota.bounds_of(doc).items()}
    denied = _admin_denials(documents, unread) if admin_namespaces == "labelled" else {}
    denied |= _with_group_members(documents, kept_out or {}, unread)
    problems = _quota_problems(documents)
    if not bounds and not denied:
        return _with_problems(solve(relevant), problems)
    classes = quota.classes_among(relevant)
    units = [unit for unit in _units(relevant, bounds, classes, unread) if not unit.keys & denied.keys()]
    held = quota.count_allocated([*relevant, *unread], bounds, classes)
    room = {bound: most - held[bound] for bound, most in bounds.items()}
    failed: dict[ClaimKey, Answer] = {}
    hopeless: set[ClaimKey] = set()
    seconds = 0.0

    def solve_without(withheld: Container[ClaimKey]) -> Answer:
        nonlocal seconds
        answer = solve(
            [doc for doc in relevant if doc.get("kind") != "DeviceClaim" or ClaimView(doc).key not in withheld]
        )
        seconds += answer["seconds"]
        return answer

    def units_without(left_out: Set[ClaimKey]) -> list[_Unit]:
        return [unit for unit in units if not unit.keys & left_out]

    for turn in range(_PASSES):
        admitted, refused = _admit_in_order(units_without({*failed, *hopeless}), room, bounds)
        answer = solve_without({*denied, *refused, *failed, *hopeless})
        by_claim = _by_claim(answer)
        short = {bound for one in refused.values() for bound in one.bounds}
        lost = [unit for unit in admitted if short & unit.wants.keys() and _is_refused(unit, by_claim)]
        if not lost or turn == _PASSES - 1 or seconds > _SECONDS:
            break
        failed |= {key: by_claim[key] for unit in lost for key in unit.keys}
        if turn == 0:  # first all that would find no place even without any quota
            by_claim = _by_claim(solve_without({*denied, *failed}))
            hopeless = {
                key for unit in units_without(failed.keys()) if _is_hopeless(unit, by_claim) for key in unit.keys
            }
    if hopeless:  # in their turn a quota may refuse them; what else keeps them out depends on who holds devices now
        _, refused = _admit_in_order(units_without(failed.keys()), room, bounds, hopeless)
        if hopeless - refused.keys():
            answer = solve_without({*denied, *refused, *failed})
    reasons = {key: one.why for key, one in refused.items()} | denied
    others = [
        refusal_answer(key, reason, message_of(Finding((text_fact(text),)))) for key, (reason, text) in reasons.items()
    ]
    holders = {ClaimView(claim).key for claim in device_claims_in(relevant) if ClaimView(claim).entries}
    holders |= {key for key, one in _by_claim(answer).items() if one["allocated"]}
    owners = {(ref["kind"], ref["namespace"], ref["name"]) for ref in map(claim_ref, holders)}
    lost_answers = [one if _named_owners(one) <= owners else _lost_answer(key) for key, one in failed.items()]
    claims = sorted([*answer["claims"], *lost_answers, *others], key=lambda one: (one["namespace"], one["name"]))
    return _with_problems({**answer, "claims": claims, "seconds": seconds}, problems)


def _quota_problems(documents: Sequence[Object]) -> list[dict[str, Any]]:
    quotas = [doc for doc in documents if quota.is_quota(doc)]
    names = quota.ClassNames.among(documents) if quotas else quota.NO_CLASSES
    return [problem.to_dict() for one in quotas for problem in quota.problems_of(one, names)]


def _with_problems(answer: Answer, problems: list[dict[str, Any]]) -> Answer:
    return {**answer, "problems": [*answer["problems"], *problems]} if problems else answer


def _by_claim(answer: Answer) -> dict[ClaimKey, Answer]:
    return {(one["namespace"], one["name"]): one for one in answer["claims"]}


def _named_owners(answer: Answer) -> set[tuple[str, str, str]]:
    """Who has what a claim lacks, by its answer."""
    users = [{"kind": "claim", **user} for funnel in answer.get("funnel", ()) for user in funnel.get("usedBy", ())]
    blockers = [one for one in answer.get("blockers", ()) if one["kind"] in HOLDERS]
    return {(one.get("title", one["kind"]), one["namespace"], one["name"]) for one in (*users, *blockers)}


def _lost_answer(key: ClaimKey) -> Answer:
    """The answer to a claim that lost to others, which then lost to those that asked after it."""
    why = "other claims of this batch got the devices; give it a priority, or wait until they are gone"
    return refusal_answer(key, Reason.LOST_TO_COMPETITION, why)


def _is_hopeless(unit: _Unit, by_claim: Mapping[ClaimKey, Answer]) -> bool:
    """Whether one of them finds no place, even if no other claim of this batch gets one."""
    reasons = {by_claim[key]["reason"] for key in unit.keys if not by_claim[key]["allocated"]}
    return bool(reasons - _OF_THE_BATCH)


def _is_refused(unit: _Unit, by_claim: Mapping[ClaimKey, Answer]) -> bool:
    """Whether a unit that had its turn got nothing. One that is searched for keeps its turn."""
    answers = [by_claim[key] for key in unit.keys]
    return not all(each["allocated"] for each in answers) and not any(each.get(STILL_SEARCHING) for each in answers)


@dataclass(frozen=True, slots=True)
class _Denial:
    why: Refusal
    bounds: frozenset[Bound]


def _admit_in_order(
    units: Iterable[_Unit],
    room: Mapping[Bound, int],
    bounds: Mapping[Bound, int],
    hopeless: Set[ClaimKey] = frozenset(),
) -> tuple[list[_Unit], dict[ClaimKey, _Denial]]:
    """Decide who may ask, and who exceeds a quota.

    Units come in the order of their turn. ``hopeless``: those that get nothing, so take nothing from those behind them.
    """
    left = dict(room)
    admitted: list[_Unit] = []
    refused: dict[ClaimKey, _Denial] = {}
    for unit in units:
        over = {}
        for bound, wants in unit.wants.items():
            numbers = [number for number in wants.values() if isinstance(number, int)]
            if len(numbers) < len(wants) or sum(numbers) > left[bound]:
                over[bound] = wants
        if over:
            why: dict[ClaimKey, tuple[Reason, str]] = {}
            for bound, wants in over.items():
                why |= dict.fromkeys(wants, (Reason.QUOTA_EXCEEDED, _quota_message(bound, wants, bounds)))
            refusals = _member_messages(unit, why)
            refused |= {key: _Denial(one, frozenset(over)) for key, one in refusals.items()}
            continue
        admitted.append(unit)
        for bound, wants in () if unit.keys & hopeless else unit.wants.items():
            left[bound] -= sum(number for number in wants.values() if isinstance(number, int))
    return admitted, refused


def _quota_message(bound: Bound, wants: Mapping[ClaimKey, int | str], bounds: Mapping[Bound, int]) -> str:
    """Which quota it is, and what to do."""
    namespace, name, device_class = bound
    quota_named = f"quota {namespace}/{name}"
    most = f"{bounds[bound]} {'device' if bounds[bound] == 1 else 'devices'} of class {device_class}"
    for key, number in wants.items():
        if isinstance(number, str):
            which = number if len(wants) == 1 else f"{number} of {'/'.join(key)}"
            counted = f"{quota_named} counts devices of class {device_class}"
            return f"{which}: {counted}; set limits.count to how many it may get"
    requested = sum(number for number in wants.values() if isinstance(number, int))
    who = "this claim" if len(wants) == 1 else "its group"
    # How many are left is not said: whatever is given or released would have all that wait told anew.
    if requested > bounds[bound]:
        why, remedy = f", and {who} may get up to {requested}", "ask for less"
    else:
        why, remedy = "; others hold them or come first", "delete one"
    return f"{quota_named} allows {most}{why}; {remedy}, or have it raised"


def _member_messages(unit: _Unit, why: Mapping[ClaimKey, Refusal]) -> dict[ClaimKey, Refusal]:
    """The message of each member if some have a reason of their own."""
    guilty = min(why)
    owner = owner_of(guilty)
    others = (
        Reason.GROUP_UNSATISFIABLE,
        f"{owner.namespace}/{owner.name} of its group gets nothing: {why[guilty][1]}",
    )
    return {key: why.get(key, others) for key in unit.keys}


# -- who asks ----------------------------------------------------------------------------------------------------------


def _waiting(documents: Sequence[Object], unread: Sequence[Any]) -> Iterator[list[Object]]:
    """Claims that hold nothing, with their groups. Claims of one name are left out: the solver refuses all of them."""
    groups: dict[tuple[str, str], list[Object]] = {}
    claims = [*device_claims_in(documents)]
    copies = Counter([*(ClaimView(claim).key for claim in claims), *_other_claim_names(documents, unread)])
    for claim in claims:
        view = ClaimView(claim)
        if view.entries or view.is_deleting or copies[view.key] > 1:
            continue
        if (group := view.group) is None:
            yield [claim]
        else:
            groups.setdefault((view.key[0], group), []).append(claim)
    yield from groups.values()


def _other_claim_names(documents: Sequence[Object], unread: Sequence[Any]) -> Iterator[ClaimKey]:
    """The names of claims that the solver knows besides ``device_claims_in``, because it refuses those too."""
    of_another_version = (doc for doc in documents if doc.get("apiVersion") != meta.DEVMGMT)
    for doc in (*of_another_version, *unread):
        key = claim_key_or_none(doc)
        if key is not None and isinstance(decode(doc).object, DeviceClaim | None):  # else it is a foreign object
            yield key


def _units(
    documents: Sequence[Object], bounds: Iterable[Bound], classes: quota.Classes, unread: Sequence[Any]
) -> list[_Unit]:
    """Those that count for a bound, in the order of their turn: a group's is that of its first member."""
    by_namespace: dict[str, list[Bound]] = {}
    for bound in bounds:
        by_namespace.setdefault(bound[0], []).append(bound)
    ordered = []
    for members in _waiting(documents, unread):
        own_bounds = by_namespace.get(ClaimView(members[0]).key[0], ())
        read = [one for member in members if own_bounds and isinstance(one := decode(member).object, DeviceClaim)]
        wants: dict[Bound, dict[ClaimKey, int | str]] = {}
        for bound in own_bounds:
            for claim in read:
                if is_object(claim.key) and (number := quota.max_devices(claim, bound[2], classes)):
                    wants.setdefault(bound, {})[claim.key] = number
        if wants:
            ordered.append((min(map(_claim_order, read)), _Unit(members, wants)))
    return [unit for _, unit in sorted(ordered, key=lambda one: one[0])]


def _claim_order(claim: DeviceClaim) -> tuple[int, bool, float, ClaimKey]:
    """S17: priority, creation time (a missing one comes last), namespace and name."""
    created = claim.metadata.creation_timestamp
    since = 0.0 if created is None else meta.parse_time(created).timestamp()
    return -claim.priority, created is None, since, claim.key


def _admin_denials(documents: Sequence[Object], unread: Sequence[Any]) -> dict[ClaimKey, Refusal]:
    """Claims that want admin access in a namespace that is not for it, and who is in a group with them."""
    if not (admin := admin_class_names(documents)):
        return {}
    labelled = {doc["metadata"]["name"] for doc in documents if _is_namespace(doc) and _is_labelled(doc)}
    denied: dict[ClaimKey, Refusal] = {}
    for members in _waiting(documents, unread):
        namespace = ClaimView(members[0]).key[0]
        if namespace in labelled:
            continue
        why = {}
        for member in members:
            if named := sorted(admin & _class_names(member)):
                why[ClaimView(member).key] = (
                    Reason.ADMIN_ACCESS_DENIED,
                    f"class {named[0]} gives admin access; "
                    f'an admin must label namespace {namespace} {meta.ADMIN_ACCESS}: "true"',
                )
        if why:
            denied |= _member_messages(_Unit(members, {}), why)
    return denied


def _with_group_members(
    documents: Sequence[Object], why: Mapping[ClaimKey, Refusal], unread: Sequence[Any]
) -> dict[ClaimKey, Refusal]:
    """Those of them that wait, and who is in a group with them."""
    reasons: dict[ClaimKey, Refusal] = {}
    for members in _waiting(documents, unread) if why else ():
        if own_reasons := {key: why[key] for claim in members if (key := ClaimView(claim).key) in why}:
            reasons |= _member_messages(_Unit(members, {}), own_reasons)
    return reasons


def _class_names(claim: Object) -> set[str]:
    """The classes that its entries name, as far as they can be read."""
    spec = claim.get("spec")
    entries = spec.get("claims") if isinstance(spec, dict) else None
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    choices = [one for entry in entries if isinstance(of := entry.get("oneOf"), list) for one in of]
    details = [*entries, *(one for one in choices if isinstance(one, dict))]
    return {name for detail in details if isinstance(name := detail.get("deviceClass"), str)}
