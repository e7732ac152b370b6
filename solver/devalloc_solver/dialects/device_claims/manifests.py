"""Sort manifests of our own dialect: what is valid, what is not, and which claims that affects (S4a, S16).

Nothing raises here: an invalid object is left out and reported, and everything else goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.findings import text_fact
from devalloc.api.json_content import escape_invalid_unicode, is_valid_unicode
from devalloc.api.pool import Attribute, Device, DevicePool
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc.api.replica_set import VirtualMachineReplicaSet
from devalloc.api.views import claim_key_or_none, recover_status
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import VirtualMachineMigration
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.snapshot import without_duplicate_pools

# Here rather than with the first object of each: every user of the solver needs them, and the first answer should take
# no longer than the second.
for _model in (meta.ObjectMeta, Attribute, Device, DevicePool, DeviceClass, DeviceClaimStatus, DeviceClaim):
    _model.model_rebuild()

ConfigKey = tuple[str, str, str, str]
"""(apiVersion, kind, namespace, name)"""


@dataclass(frozen=True, slots=True)
class ProblemInput:
    """The valid objects by kind, and what was refused."""

    pools: tuple[DevicePool, ...]
    classes: Mapping[str, DeviceClass]
    invalid_classes: Mapping[str, str]
    """class name -> why"""
    claims: tuple[DeviceClaim, ...]
    configs: Mapping[ConfigKey, dict[str, Any]]
    refused: tuple[RejectedClaim, ...]
    problems: tuple[Problem, ...]
    warnings: Mapping[Key, tuple[str, ...]]
    invalid_pools: Mapping[str, str] = field(default_factory=dict)
    """driver -> a pool of it that was left out, and why"""


def read_documents(documents: Iterable[object]) -> ProblemInput:
    """Decode manifests of all kinds and sort them out."""
    objects: list[ApiModel] = []
    problems: list[Problem] = []
    invalid_classes: dict[str, str] = {}
    invalid_pools: dict[str, str] = {}
    refused: list[RejectedClaim] = []
    warnings: dict[Key, list[str]] = defaultdict(list)
    for document in documents:
        decoded = decode(document)
        if decoded.object is not None:
            objects.append(decoded.object)
            if isinstance(decoded.object, DeviceClaim):
                warnings[decoded.object.key] += [p.message for p in decoded.problems]
                continue
        problems += decoded.problems
        errors = [p for p in decoded.problems if p.severity == "error"]
        if decoded.object is None and isinstance(document, Mapping):
            record_invalid(document, errors, invalid_classes, refused)
            record_invalid_pool(document, errors, invalid_pools)
    valid = without_duplicates(objects, problems, invalid_classes, refused, warnings)
    record_clashing_pools(valid.pools, invalid_pools)
    return replace(valid, invalid_pools=invalid_pools)


def read_objects(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    configs: Iterable[ApiModel | Mapping[str, Any]] = (),
) -> ProblemInput:
    """The same for objects that are already typed. Raises TypeError for one of another type."""
    objects: list[ApiModel] = []
    for given, kind in ((pools, DevicePool), (classes, DeviceClass), (claims, DeviceClaim)):
        for one in given:
            if not isinstance(one, kind):
                raise TypeError(
                    f"expected a {kind.__name__} object, not {type(one).__name__}: "
                    "give manifests to solve_manifests, which reads them"
                )
            objects.append(one)
    for config in configs:
        if not isinstance(config, ApiModel | Mapping):  # of one manifest, its keys
            kind = type(config).__name__
            raise TypeError(f"expected a manifest or an object of each config, not {kind}: configs must be a list")
        typed = config if isinstance(config, ApiModel) else decode(config).object
        if typed is not None:
            objects.append(typed)
    return without_duplicates(objects, [], {}, [], {})


def record_invalid(
    document: Mapping[Any, Any], errors: Sequence[Problem], classes: dict[str, str], refused: list[RejectedClaim]
) -> None:
    """Remember an invalid class or claim by name, so that claims that name it get a true answer."""
    why = "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in errors[:5])
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(name, str):
        return
    if document.get("kind") == "DeviceClass":
        classes.setdefault(name, why)
    elif key := claim_key_or_none(document):
        annotations = metadata.get("annotations")
        marks = annotations if isinstance(annotations, Mapping) else {}
        nodes = (_node(marks.get(meta.ALLOCATED_NODE)), _node(marks.get(meta.NODE)))
        refused.append(
            RejectedClaim(
                key,
                Reason.CLAIM_INVALID,
                (text_fact(why),),
                group=_text(marks.get(meta.GROUP)),
                status=recover_status(document.get("status")),
                node=nodes[0] or nodes[1],
            )
        )


def record_invalid_pool(document: Mapping[Any, Any], errors: Sequence[Problem], pools: dict[str, str]) -> None:
    """Remember a pool that is left out, the first by name of each driver: reasons of claims name it."""
    spec, metadata = document.get("spec"), document.get("metadata")
    if document.get("kind") != "DevicePool" or not isinstance(spec, Mapping) or not isinstance(metadata, Mapping):
        return
    driver, name = _text(spec.get("driver")), _text(metadata.get("name"))
    if driver is not None and name is not None and errors:
        why = f"{errors[0].path}: {errors[0].message}" if errors[0].path else errors[0].message
        _leave_out(driver, name, why, pools)


def record_clashing_pools(pools: Iterable[DevicePool], left_out: dict[str, str]) -> None:
    """The same of pools that share a name where one node reaches them (S2)."""
    given = list(pools)
    valid = {id(pool) for pool in without_duplicate_pools(given)[0]}
    for pool in (pool for pool in given if id(pool) not in valid):
        _leave_out(
            pool.spec.driver, pool.metadata.name, "metadata.name: a node reaches another pool of that name", left_out
        )


def _leave_out(driver: str, name: str, why: str, pools: dict[str, str]) -> None:
    text = f"DevicePool {name} is left out, {why}"
    pools[driver] = min(text, pools.get(driver, text))


def _text(value: object) -> str | None:
    return escape_invalid_unicode(value) if isinstance(value, str) and value else None


def _node(value: object) -> str | None:
    """None also for a name that cannot be read: what is held may then be on any node."""
    return value if isinstance(value, str) and value and is_valid_unicode(value) else None


def without_duplicates(
    objects: Sequence[ApiModel],
    problems: list[Problem],
    invalid_classes: dict[str, str],
    refused: list[RejectedClaim],
    warnings: Mapping[Key, list[str]],
) -> ProblemInput:
    """Leave out what has the name of another object of its kind, and say so."""
    pools = [o for o in objects if isinstance(o, DevicePool)]
    classes = [o for o in objects if isinstance(o, DeviceClass)]
    claims = [o for o in objects if isinstance(o, DeviceClaim)]
    names = Counter([c.metadata.name for c in classes] + list(invalid_classes))
    kept_classes = {}
    for device_class in classes:
        name = device_class.metadata.name
        if names[name] == 1:
            kept_classes[name] = device_class
            continue
        invalid_classes[name] = f"{names[name]} classes are named {name!r}; rename all but one"
        problems.append(Problem(invalid_classes[name], path="metadata.name", kind="DeviceClass", name=name))
    keys = Counter([c.key for c in claims] + [r.key for r in refused])
    kept_claims = []
    for claim in claims:
        if keys[claim.key] == 1:
            kept_claims.append(claim)
            continue
        namespace, name = claim.key
        message = f"{keys[claim.key]} claims are named {namespace}/{name}; rename all but one"
        problems.append(Problem(message, path="metadata.name", kind="DeviceClaim", namespace=namespace, name=name))
        refused.append(
            RejectedClaim(
                claim.key,
                Reason.CLAIM_INVALID,
                (text_fact(message),),
                group=claim.group,
                status=claim.status if claim.is_allocated else None,
                node=claim.allocated_node or claim.pinned_node,
            )
        )
    return ProblemInput(
        pools=tuple(pools),
        classes=kept_classes,
        invalid_classes=invalid_classes,
        claims=tuple(kept_claims),
        configs=configs_of(objects),
        refused=tuple(refused),
        problems=tuple(problems),
        warnings={key: tuple(messages) for key, messages in warnings.items() if messages},
    )


_NO_CONFIG = (
    *(DevicePool, DeviceClass, DeviceClaim),
    *(VirtualMachine, VirtualMachineReplicaSet, VirtualMachineMigration),
)
"""Objects that no class or claim can name as a configuration: there may be many thousands of them."""


def is_config(obj: ApiModel) -> bool:
    """Whether a class or claim can name it in its ``configs``."""
    return not isinstance(obj, _NO_CONFIG)


def configs_of(objects: Iterable[ApiModel]) -> dict[ConfigKey, dict[str, Any]]:
    """The configuration objects among some, by how classes and claims name them."""
    by_key = {}
    for manifest in (obj.to_manifest() for obj in objects if is_config(obj)):
        metadata = manifest["metadata"]
        key = manifest["apiVersion"], manifest["kind"], metadata.get("namespace") or "default", metadata["name"]
        by_key[key] = manifest
    return by_key
