"""Pools of other drivers that devalloc's controller allocates in place of kube-scheduler.

A driver, or one pool of it, is adopted by a DeviceTaintRule with a label of ours. Its taint keeps kube-scheduler off,
and a policy whose parameters are these rules refuses what kube-scheduler writes late (``deploy/adoption``). The
controller allocates from these pools once it has seen the policy refuse, and read all claims after that; then it writes
the time on the rule. A finalizer keeps a deleted rule until the controller has stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from devalloc.api.dedicated_pools import TAINT, is_dedicated
from devalloc.api.fields import is_subdomain_name
from devalloc.api.meta import MESSAGE, MetadataKey
from devalloc.api.views import as_mapping, as_mappings

MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "devalloc")
"""Label of the rules that adopt; the parameters of the policy are selected by it."""
FINALIZER: Final = "devalloc.io/adoption"
ADOPTED_AT: Final = "devalloc.io/adopted-at"
"""Annotation of a rule: since when the controller allocates from its pools."""
KEYS: Final = (MetadataKey("annotations", ADOPTED_AT, ("DeviceTaintRule",)),)
"""See ``meta.KEYS``."""
RULES: Final = "/apis/resource.k8s.io/v1/devicetaintrules"
POLICY: Final = "devalloc-adopted"
"""Name of the policy and of its binding."""
PROBE: Final = "devalloc-adoption-probe"
"""Name of a ResourceClaim that no pod uses, in devalloc's namespace: to ask whether the policy refuses."""
_MAX_NAME = 253

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdoptionRule:
    """A DeviceTaintRule that adopts a driver, or one pool of it."""

    driver: str
    pool: str | None
    """None: all pools of the driver."""
    name: str
    uid: str
    adopted_at: str
    """Empty as long as the controller does not allocate from it."""
    is_ending: bool
    """It was deleted, and the controller allocates no more."""
    has_finalizer: bool
    message: str
    """Why the controller does not allocate from it; empty if it does, or has not looked yet."""

    @property
    def title(self) -> str:
        """driver/NAME, with the pool."""
        return f"driver/{self.driver}" + (f" pool {self.pool}" if self.pool else "")


@dataclass(frozen=True, slots=True)
class AllocatablePools:
    """The pools that the controller allocates from: those of nodes that are set aside, and adopted ones."""

    adopted: frozenset[tuple[str, str | None]] = frozenset()
    """Driver and pool; None: all pools."""

    def cover(self, driver: str, pool: str) -> bool:
        return is_dedicated(pool) or (driver, None) in self.adopted or (driver, pool) in self.adopted


DEDICATED_ONLY: Final = AllocatablePools()


def is_adoption_rule(content: Object) -> bool:
    """Whether a DeviceTaintRule adopts: with our label and exactly our taint, for whole pools of one driver."""
    spec = content.get("spec") or {}
    taint, selector = spec.get("taint") or {}, spec.get("deviceSelector") or {}
    labels = content["metadata"].get("labels") or {}
    return (
        labels.get(MANAGED_BY[0]) == MANAGED_BY[1]
        and all(taint.get(name) == value for name, value in TAINT.items())
        and bool(selector.get("driver"))
        and not selector.get("device")
    )


def adoption_rules(rules: Iterable[Object]) -> list[AdoptionRule]:
    """Those of DeviceTaintRules that adopt, by driver and pool."""
    return sorted(
        map(_read, filter(is_adoption_rule, rules)), key=lambda rule: (rule.driver, rule.pool or "", rule.name)
    )


def pools_of_rules(rules: Iterable[AdoptionRule]) -> AllocatablePools:
    return AllocatablePools(frozenset((rule.driver, rule.pool) for rule in rules))


def _read(content: Object) -> AdoptionRule:
    metadata, selector = content["metadata"], content["spec"]["deviceSelector"]
    return AdoptionRule(
        driver=str(selector["driver"]),
        pool=selector.get("pool") or None,
        name=metadata["name"],
        uid=str(metadata.get("uid", "")),
        adopted_at=str((metadata.get("annotations") or {}).get(ADOPTED_AT) or ""),
        is_ending=bool(metadata.get("deletionTimestamp")),
        has_finalizer=FINALIZER in (metadata.get("finalizers") or ()),
        message=str((metadata.get("annotations") or {}).get(MESSAGE) or ""),
    )


def is_probe(claim: Object) -> bool:
    """Whether a ResourceClaim is the one by which the controller asks the policy; no pod waits for it."""
    if claim["metadata"].get("name") != PROBE:
        return False
    requests = as_mappings(as_mapping(as_mapping(claim.get("spec")).get("devices")).get("requests"))
    return [as_mapping(each.get("exactly")).get("deviceClassName") for each in requests] == [PROBE]


def adopted_drivers(rules: Iterable[Object]) -> list[str]:
    """The drivers that DeviceTaintRules of any content adopt, by name."""
    return sorted(
        {str(rule["spec"]["deviceSelector"]["driver"]) for rule in map(_readable, rules) if is_adoption_rule(rule)}
    )


def _readable(rule: Object) -> Object:
    """The parts of a rule that decide whether it adopts, in their right types."""
    spec, metadata = as_mapping(rule.get("spec")), as_mapping(rule.get("metadata"))
    parts = {name: as_mapping(spec.get(name)) for name in ("taint", "deviceSelector")}
    return {"metadata": {"labels": as_mapping(metadata.get("labels"))}, "spec": parts}


def rule_name(driver: str, pool: str | None = None) -> str:
    """The name of the rule that adopts. Raises ValueError if it would be too long."""
    name = f"devalloc-{driver}" + (f".pool.{pool.replace('/', '.')}" if pool else "")
    if len(name) > _MAX_NAME or not is_subdomain_name(name):
        raise ValueError(f"the names of driver {driver} and pool {pool} are too long for the name of a rule")
    return name


def rule_manifest(driver: str, pool: str | None = None) -> dict[str, Any]:
    """The DeviceTaintRule that adopts. Raises ValueError."""
    selector = {"driver": driver} | ({"pool": pool} if pool else {})
    metadata = {"name": rule_name(driver, pool), "labels": dict([MANAGED_BY]), "finalizers": [FINALIZER]}
    spec = {"deviceSelector": selector, "taint": dict(TAINT)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": metadata, "spec": spec}


def rights_name(driver: str) -> str:
    """The name of the ClusterRole, and of its binding, that let the controller allocate devices of a driver."""
    return f"devalloc-adopted:{driver}"


def rights_manifests(driver: str, namespace: str) -> list[dict[str, Any]]:
    """The right to allocate devices of a driver, a verb of our own, which the policy devalloc-allocator asks for."""
    metadata = {"name": rights_name(driver), "labels": dict([MANAGED_BY])}
    version = "rbac.authorization.k8s.io/v1"
    rule = {"apiGroups": ["devalloc.io"], "resources": ["drivers"], "resourceNames": [driver], "verbs": ["allocate"]}
    subject = {"kind": "ServiceAccount", "name": "devalloc-controller", "namespace": namespace}
    role = {"kind": "ClusterRole", "name": metadata["name"], "apiGroup": "rbac.authorization.k8s.io"}
    return [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "subjects": [subject],
            "roleRef": role,
        },
    ]
