"""Sort manifests of our own dialect: what is valid, what is not, and which claims that affects (S4a, S16).

Nothing raises here: an invalid object is left out and reported, and everything else goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim, DeviceClaimStatus
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import ApiModel
from devalloc.api.findings import text_fact
from devalloc.api.json_content import is_valid_unicode
from devalloc.api.node_rules import restrictions_of
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.owner_names import read_name
from devalloc.api.pool import Attribute, Device, DevicePool
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc.api.replica_set import VirtualMachineReplicaSet
from devalloc.api.unreadable_claims import claim_key_or_none, recover_status
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import VirtualMachineMigration
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.snapshot import without_duplicate_pools

# Here rather than with the first object of each: every user of the solver needs them, and the first answer should take
# no longer than the second.
for _model in (ObjectMeta, Attribute, Device, DevicePool, DeviceClass, DeviceClaimStatus, DeviceClaim):
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


def read_objects(
    pools: Iterable[DevicePool],
    classes: Iterable[DeviceClass],
    claims: Iterable[DeviceClaim],
    configs: Iterable[ApiModel | Mapping[str, Any]] = (),
) -> ProblemInput:
    """Sort out objects that are already typed. Raises TypeError for one of another type."""
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


def invalid_claim(document: Mapping[Any, Any], why: str) -> RejectedClaim | None:
    """What counts of a claim that cannot be read; None of one without a name, and of other objects."""
    key, metadata = claim_key_or_none(document), document.get("metadata")
    if key is None or not isinstance(metadata, Mapping):
        return None
    annotations = metadata.get("annotations")
    marks = annotations if isinstance(annotations, Mapping) else {}
    return RejectedClaim(
        key,
        Reason.CLAIM_INVALID,
        (text_fact(why),),
        group=_text(marks.get(meta.GROUP)) if restrictions_of(document) is None else marks.get(meta.GROUP),
        status=recover_status(document.get("status")),
        node=_node(marks.get(meta.ALLOCATED_NODE)) or _node(marks.get(meta.NODE)),
    )


def record_invalid_pool(document: Mapping[Any, Any], why: str, pools: dict[str, str]) -> None:
    """Remember a pool that is left out, the first by name of each driver: reasons of claims name it."""
    spec, metadata = document.get("spec"), document.get("metadata")
    if document.get("kind") == "DevicePool" and isinstance(spec, Mapping) and isinstance(metadata, Mapping):
        driver, name = _text(spec.get("driver")), _text(metadata.get("name"))
        if driver is not None and name is not None and why:
            _leave_out(driver, name, why, pools)


def record_clashing_pools(pools: Iterable[DevicePool], left_out: dict[str, str]) -> None:
    """The same of pools that share a name where one node reaches them (S2)."""
    given = list(pools)
    valid = {id(pool) for pool in without_duplicate_pools(given)[0]}
    for pool in (pool for pool in given if id(pool) not in valid):
        _leave_out(
            pool.spec.driver,
            pool.metadata.name,
            "metadata.name: another pool of its node has that name",
            left_out,
        )


def _leave_out(driver: str, name: str, why: str, pools: dict[str, str]) -> None:
    text = f"DevicePool {name} is left out, {why}"
    pools[driver] = min(text, pools.get(driver, text))


def _text(value: object) -> str | None:
    return read_name(value) if isinstance(value, str) and value else None


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


def is_config(obj: ApiModel | None) -> bool:
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
