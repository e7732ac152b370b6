"""Which pools of other drivers are adopted: when the controller may allocate from them, and when it has stopped.

kube-scheduler writes what it chose seconds earlier. So the controller first asks whether the API server refuses such a
write (``PolicyProbe``), again and again for some seconds because each API server has its own copy of the rules; then it
reads all claims anew; only then it allocates. Each process does all this itself: the mark on a rule tells people, and
another process's answers prove nothing. A rule that is being deleted is kept by its finalizer until kube-scheduler has
had time to see what the controller wrote last.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from devalloc.api.adopted_pools import (
    ADOPTED_AT,
    FINALIZER,
    PROBE,
    AdoptionRule,
    AllocatablePools,
    adoption_rules,
    pools_of_rules,
)
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.api.meta import MESSAGE
from devalloc.controller.leader.election import ClusterStore
from devalloc.store import StoreError
from devalloc.store.kubernetes import ApiError, Client
from devalloc.store.metadata_rules import with_annotations

log = logging.getLogger(__name__)

Object = dict[str, Any]

SETTLE_SECONDS = 3.0
"""For how long the policy must refuse before it is believed to do so at every API server."""
PROBE_SECONDS = 0.5
"""Between two probes meanwhile."""
RETRY_SECONDS, CHECK_SECONDS = 5.0, 60.0
"""Between two probes of a policy that does not refuse, and of one that did so for long."""
UPDATE_SECONDS = 1.0
"""How long an update asks and writes; the rules that it does not come to are the first ones of the next."""
CHECKS_A_MINUTE = 20
"""Of all rules that were adopted long ago: each check is several requests, and all rules have one policy."""
RELEASE_SECONDS = 10.0
"""From the controller's last write until kube-scheduler may allocate: it watches claims and rules separately."""
MAX_MESSAGE = 1000
RULE = "DeviceTaintRule"


@dataclass(slots=True)
class _Progress:
    """What this process knows of a rule."""

    refused_since: float | None = None
    """Since when the policy refuses without an exception."""
    next_probe: float = 0.0
    is_adopted: bool = False
    trouble: str = ""
    """Why it is not adopted yet, as logged."""


@dataclass(slots=True)
class Adoption:
    """Use from the thread of the allocator's loop."""

    store: ClusterStore
    probe: Callable[[AdoptionRule], str]
    """Ask each API server; "" if the policy refuses what others allocate of a rule's pools, otherwise why it is not
    known to."""
    clock: Callable[[], float]
    pools: AllocatablePools = field(default_factory=AllocatablePools)
    """From which the controller may allocate now."""
    _progress: dict[str, _Progress] = field(default_factory=dict)
    """By the UID of a rule."""
    _releases: dict[str, float] = field(default_factory=dict)
    """When a deleted rule is to be released, by its UID; infinity: it is not held any more."""
    _is_behind: bool = False
    """The last update did not come to all rules."""
    _seen: frozenset[tuple[str, str]] = frozenset()
    """UID and version of the rules at the last update."""

    def update(self) -> None:
        """Take each rule one step further. Call it before a round reads what it decides on. Raises StoreError."""
        now = self.clock()
        objects = {str(each["metadata"].get("uid", "")): each for each in self.store.list(RULE).objects}
        self._seen = _versions(objects.values())
        rules = adoption_rules(objects.values())
        for noted in (self._progress, self._releases):
            for uid in noted.keys() - {rule.uid for rule in rules}:
                del noted[uid]
        ends, pause = now + UPDATE_SECONDS, max(CHECK_SECONDS, len(rules) * 60.0 / CHECKS_A_MINUTE)
        self._is_behind = False
        settled: list[AdoptionRule] = []
        for rule in sorted(rules, key=self._due_time):
            if self.clock() >= ends:
                self._is_behind = True
            elif rule.is_ending:
                self._end(rule, objects[rule.uid], now)
            elif not rule.has_finalizer:
                self._progress.pop(rule.uid, None)
                self._write(objects[rule.uid], rule, finalizers=[*_finalizers(objects[rule.uid]), FINALIZER])
            elif self._is_settled(rule, objects[rule.uid], now, pause):
                settled.append(rule)
        if settled:
            self.store.refresh()  # what kube-scheduler wrote until now counts
        for rule in settled:
            self._of(rule).is_adopted = True
            log.info("%s: adopted", rule.title)
            self._mark(rule, objects[rule.uid], pause)
        adopted = [rule for rule in rules if not rule.is_ending and self._of(rule).is_adopted]
        self.pools = pools_of_rules(adopted)

    def has_seen(self, objects: Iterable[Object]) -> bool:
        """Whether the last ``update`` read the rules among these objects; otherwise another one is due at once."""
        return _versions(each for each in objects if each["kind"] == RULE) == self._seen

    def due(self) -> Iterable[float]:
        """When ``update`` has something to do, even if no object changes."""
        if self._is_behind:
            yield 0.0
        yield from (each.next_probe for each in self._progress.values() if each.next_probe)
        yield from self._releases.values()

    def _due_time(self, rule: AdoptionRule) -> float:
        """New ones are first."""
        if rule.is_ending:
            return self._releases.get(rule.uid, 0.0)
        return self._progress[rule.uid].next_probe if rule.uid in self._progress else 0.0

    def _of(self, rule: AdoptionRule) -> _Progress:
        return self._progress.setdefault(rule.uid, _Progress())

    def _is_settled(self, rule: AdoptionRule, content: Object, now: float, pause: float) -> bool:
        """Probe the policy if that is due. Whether the rule is not adopted yet and may be: every API server refuses.
        ``pause``: seconds between two probes once it is adopted."""
        progress = self._of(rule)
        if now < progress.next_probe:
            return False
        trouble, now = self.probe(rule), self.clock()
        if trouble:
            if trouble != progress.trouble:
                log.error("%s: no devices are allocated: %s", rule.title, trouble)
                for other in self._progress.values() if not progress.trouble else ():  # it is the policy of all
                    other.next_probe = min(other.next_probe, now)
                self._write(content, rule, annotations={ADOPTED_AT: None, MESSAGE: trouble[:MAX_MESSAGE]})
            progress.trouble, progress.refused_since, progress.is_adopted = trouble, None, False
            progress.next_probe = now + RETRY_SECONDS
            return False
        progress.trouble = ""
        if progress.is_adopted:
            self._mark(rule, content, pause)
            return False
        if progress.refused_since is None:
            progress.refused_since = now
        if now >= progress.refused_since + SETTLE_SECONDS:
            return True
        progress.next_probe = now + PROBE_SECONDS
        return False

    def _mark(self, rule: AdoptionRule, content: Object, pause: float) -> None:
        """Write on an adopted rule since when it is, unless it says so."""
        progress = self._of(rule)
        progress.next_probe = self.clock() + pause
        if not rule.adopted_at:
            now_text = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if not self._write(content, rule, annotations={ADOPTED_AT: now_text, MESSAGE: None}):
                progress.next_probe = self.clock() + RETRY_SECONDS

    def _end(self, rule: AdoptionRule, content: Object, now: float) -> None:
        """Let a deleted rule go, once nothing that was allocated from its pools can be unseen."""
        self._progress.pop(rule.uid, None)
        if now < self._releases.setdefault(rule.uid, now + RELEASE_SECONDS):
            return
        if not rule.has_finalizer:  # others have finalizers of their own on it
            self._releases[rule.uid] = math.inf
            return
        self._releases[rule.uid] = now + RETRY_SECONDS
        if self._write(content, rule, finalizers=[each for each in _finalizers(content) if each != FINALIZER]):
            log.info("%s: not adopted any more", rule.title)

    def _write(self, content: Object, rule: AdoptionRule, **changed: Any) -> bool:
        """Change metadata of a rule: annotations are set, or removed if None, and finalizers replaced. Whether it was
        written."""
        metadata = {**content["metadata"], "finalizers": changed.get("finalizers", _finalizers(content))}
        changed_rule = with_annotations({**content, "metadata": metadata}, changed.get("annotations", {}))
        try:
            self.store.replace(changed_rule)
        except StoreError as error:  # claims for other devices are answered all the same; the next round tries again
            log.warning("%s: cannot write DeviceTaintRule %s: %s", rule.title, rule.name, error)
            return False
        return True


def _versions(rules: Iterable[Object]) -> frozenset[tuple[str, str]]:
    return frozenset((str(each["metadata"].get("uid")), str(each["metadata"].get("resourceVersion"))) for each in rules)


def _finalizers(content: Object) -> list[str]:
    return list(content["metadata"].get("finalizers") or ())


TRIES = 5
"""New connections for one probe: each may reach another API server."""
REFUSAL = "is adopted by devalloc"
"""Words of the policy's refusal."""
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


@dataclass(frozen=True, slots=True)
class PolicyProbe:
    """Asks whether the API server refuses what others allocate of an adopted pool, by a dry run on a claim of its own.

    The policy judges the controller like anyone else on the claim of that name.
    """

    client: Client
    namespace: str
    """Devalloc's own."""

    def __call__(self, rule: AdoptionRule) -> str:
        path = _CLAIMS.format(self.namespace)
        try:
            claim = self._claim(path)
            result = {"request": "r", "driver": rule.driver, "pool": rule.pool or "probe", "device": "probe"}
            body = {**claim, "status": {"allocation": {"devices": {"results": [result]}}}}
            for _ in range(TRIES):
                if trouble := self._try(f"{path}/{PROBE}/status", body):
                    return trouble
        except ApiError as error:
            return f"the policy cannot be asked: {error}"
        return ""

    def _try(self, path: str, body: Object) -> str:
        try:
            self.client.reconnected().replace(path, body, {"dryRun": "All"})
        except ApiError as error:
            if REFUSAL in str(error):
                return ""
            return f"the policy devalloc-adopted does not answer for it: {error}"
        return (
            "the policy devalloc-adopted does not refuse what kube-scheduler allocates: `devalloc install --adoption` "
            "installs it; if it is there, restart the API servers, which do not follow a policy that was made again"
        )

    def _claim(self, path: str) -> Object:
        try:
            return self.client.get(f"{path}/{PROBE}")
        except ApiError as error:
            if not error.is_not_found:
                raise
        request = {"name": "r", "exactly": {"deviceClassName": PROBE}}
        body: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": PROBE, "labels": {ALLOCATOR_KEY: DEVALLOC}},
            "spec": {"devices": {"requests": [request]}},
        }
        return self.client.create(path, body)
