"""The claims that Kubernetes makes for pods from ResourceClaimTemplates, for pods in manifests.

All claims of a pod are on one node. A pod gets none as long as a claim or template that it names is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.meta import GROUP, POD_CLAIM_NAME
from devalloc.api.node_rules import FIELD, Restrictions
from devalloc.api.owner_names import POD, owner_name
from devalloc.api.problems import Problem, closest_match
from devalloc.api.views import as_mapping
from devalloc.cli.resource_claims import CLAIM, TEMPLATE, as_claim, key_of, of_kind
from devalloc.controller.reconcile.stored_claims import DisjointSets
from devalloc.store.errors import Invalid, Key
from devalloc_solver.dialects.resource_k8s.claims import PodManifest
from devalloc_solver.dialects.resource_k8s.decode import read
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.manifests import check_names, check_unique

Object = dict[str, Any]
Name = tuple[str, str]
"""Namespace and name."""
_FIELD = "resourceClaims"


@dataclass(slots=True)
class ClaimsOfPods:
    """Manifests with the claims of the pods among them."""

    objects: list[Any] = field(default_factory=list)
    """the manifests, with new claims in the place of pods; without templates that pods name, and invalid ones"""
    problems: list[Problem] = field(default_factory=list)
    """why pods get no claims"""
    of_pod: dict[Name, list[Name]] = field(default_factory=dict)
    """the claims of each pod that has any"""


def with_claims_of_pods(objects: Sequence[Any], templates: Iterable[Object]) -> ClaimsOfPods:
    """Make the claims of pods. ``templates``: those among the objects that are valid; of others their own problems say
    enough."""
    given = ClaimsOfPods()
    maker = _Maker({key_of(one): one for one in templates}, {key_of(one): one for one in of_kind(objects, CLAIM)})
    maker.invalid = {key_of(one) for one in of_kind(objects, TEMPLATE)} - maker.templates.keys()
    for one in objects:
        if not (isinstance(one, dict) and one.get("kind") == POD and one.get("apiVersion") == "v1"):
            given.objects.append(one)
            continue
        problems, made = maker.claims_of(one)
        given.problems += problems
        if made is None:
            given.objects.append(one)
        elif made:
            given.of_pod[key_of(one)] = [*made]
            given.objects += (claim for key, claim in made.items() if key not in maker.claims)
    groups = _groups(given.of_pod, maker.claims)
    given.objects = [_in_group(one, groups) for one in given.objects]
    left = maker.named | maker.invalid
    given.objects = [one for one in given.objects if not any(key_of(each) in left for each in of_kind([one], TEMPLATE))]
    return given


@dataclass(slots=True)
class _Maker:
    """Makes claims from templates."""

    templates: Mapping[Name, Object]
    claims: Mapping[Name, Object]
    """those that are there"""
    invalid: set[Name] = field(default_factory=set)
    named: set[Name] = field(default_factory=set)
    """the templates that pods name"""
    pods: set[Name] = field(default_factory=set)

    def claims_of(self, content: Object) -> tuple[list[Problem], dict[Name, Object] | None]:
        """The problems of a pod, and its claims; None of one that has none to name."""
        try:
            _, namespace, name = Key.of(content)
        except Invalid:
            return [], {}  # which was said when the manifest was decoded
        about = POD, namespace, name
        try:
            pod = self._read(content)
        except FieldError as error:
            return [Problem(error.message, error.path, *about)], {}
        if not pod.spec.claims:
            return [], None
        if pod.status.phase in ("Succeeded", "Failed"):
            return [], {}
        made, problems, lacks = {}, [], False
        for number, entry in enumerate(pod.spec.claims):
            key, claim = self._claim(content, pod, entry)
            if claim is not None:
                made[key] = claim
                continue
            lacks = True
            if key not in self.invalid:
                kind, path = (CLAIM, "resourceClaimName") if entry.claim else (TEMPLATE, "resourceClaimTemplateName")
                message = f"there is no {kind} {'/'.join(key)} in the manifests, so its claims are not made; add it"
                problems.append(Problem(message, f"spec.{_FIELD}[{number}].{path}", *about))
        if not lacks and made.keys() - self.claims.keys():
            paths = _paths_of_place(content["spec"])
            problems += [Problem(_NO_PLACE, path, *about, severity="warning") for path in paths]
        return problems, {} if lacks else made

    def _read(self, content: Object) -> PodManifest:
        """A pod. Raises FieldError."""
        pod, key = read(PodManifest, content), key_of(content)
        check_names(*key)
        if key in self.pods:
            raise FieldError("metadata.name", "is the name of two pods in this namespace; rename one")
        self.pods.add(key)
        fields = content.get("spec") or {}
        for name in () if _FIELD in fields else fields:
            if isinstance(name, str) and closest_match(name, [_FIELD], alike=0.85):
                raise FieldError(f"spec.{name}", f"is not a known field of a pod: did you mean {_FIELD}?")
        check_unique([entry.name for entry in pod.spec.claims], f"spec.{_FIELD}", "entries")
        return pod

    def _claim(self, content: Object, pod: PodManifest, entry: Any) -> tuple[Name, Object | None]:
        """The claim of an entry and its name; without one, the name of what is not there."""
        namespace, name = key_of(content)
        if entry.claim:
            return (namespace, entry.claim), self.claims.get((namespace, entry.claim))
        own = namespace, f"{name}-{entry.name}"
        made = next((one.claim for one in pod.status.made if one.name == entry.name), "")
        for key in ((namespace, made), own):
            if key in self.claims:
                return key, self.claims[key]
        template = namespace, entry.template
        self.named.add(template)
        if template not in self.templates:
            return template, None
        claim = as_claim(self.templates[template])
        annotations = {**_annotations(claim), POD_CLAIM_NAME: entry.name}
        metadata = {**claim["metadata"], "name": own[1], "namespace": namespace, "annotations": annotations}
        return own, {**claim, "metadata": metadata}


_NO_PLACE = "does not count here; give only the slices of nodes on which the pod may run"


def _paths_of_place(spec: Object) -> list[str]:
    """Where a pod says on which nodes it may run."""
    affinity = as_mapping(spec.get("affinity")).get("nodeAffinity")
    own = [f"spec.{name}" for name in ("nodeName", "nodeSelector") if spec.get(name)]
    return [*own, "spec.affinity.nodeAffinity"] if affinity else own


def _groups(of_pod: Mapping[Name, Sequence[Name]], there: Mapping[Name, Object]) -> dict[Name, str]:
    """The group of each claim that is to be on one node with others, because pods have them together."""
    joined: DisjointSets[Name] = DisjointSets()
    pods: dict[Name, str] = {}
    for (_, pod), keys in of_pod.items():
        for key in keys:
            joined.join(key, keys[0])
            pods.setdefault(key, pod)
    groups: dict[Name, str] = {}
    for members in joined.sets():
        if len(members) == 1:
            continue
        names = {pods[key] for key in members}
        own = sorted(filter(None, (_annotations(there[key]).get(GROUP) for key in members if key in there)), key=str)
        pod = min(names) if len(names) > 1 else owner_name(POD, *names)
        groups.update(dict.fromkeys(members, str(own[0]) if own else pod))
    return groups


def _annotations(content: Object) -> Object:
    annotations = content["metadata"].get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _in_group(content: Any, groups: Mapping[Name, str]) -> Any:
    """A claim in its group; one that says its group itself, or cannot be read, as it is."""
    if not any(key_of(claim) in groups for claim in of_kind([content], CLAIM)):
        return content
    metadata, own = content["metadata"], _annotations(content)
    if own.get(GROUP) or not isinstance(metadata.get("annotations") or {}, dict):
        return content
    annotations = {**own, GROUP: groups[key_of(content)]}
    return {**content, "metadata": {**metadata, "annotations": annotations}, FIELD: Restrictions()}
