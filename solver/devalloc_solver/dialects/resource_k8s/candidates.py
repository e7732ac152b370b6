"""Which devices a request of a ResourceClaim may take, and at which step the others drop out.

The order of steps is upstream's, so that an error in the input is met on the same devices. A device that cannot be
judged is skipped, and its error stored: it becomes the answer if nothing fits (settled D3).

How much of a device's capacity a request takes is rounded up to what the policy of the device offers. Without a policy,
and without a step, amounts are exact at any size; stepping happens in 64-bit whole units (thousandths behind
DRAFractionalCapacityRange), and an amount that does not fit there is an error, never wrapped (settled D4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC
from devalloc.api.findings import Rule, RuleCode, rule
from devalloc.api.node_rules import NodeRestriction, barred_nodes
from devalloc.api.quantity import NANO
from devalloc.printable import one_line
from devalloc_solver.cel.budget import OUT_OF_TIME, TOO_EXPENSIVE_ONCE, CommonBudgetExceeded, OutOfTime
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.claims import (
    DeviceToleration,
    ResourceClaim,
    ResourceDeviceClass,
    SubRequest,
)
from devalloc_solver.dialects.resource_k8s.fields import MAX_INT64, MILLI, AllocationError, Amount
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceUsage,
    PublishedDevice,
    overdrawn_counters,
    published_device,
)
from devalloc_solver.dialects.resource_k8s.selectors import cel_device
from devalloc_solver.dialects.resource_k8s.slices import (
    CapacityRange,
    CapacityRequestPolicy,
    DeviceCapacity,
    DeviceTaint,
    SliceDevice,
)
from devalloc_solver.eligibility.facts import ClassRule, Eligible
from devalloc_solver.eligibility.judge import ExpressionError, ExpressionRefusal, Judge
from devalloc_solver.problem.demand import Candidates, FunnelStep, without_nodes
from devalloc_solver.problem.snapshot import Device


class CapacityOverflowError(Exception):
    """An amount that cannot be counted: an error of the whole allocation."""


def amounts_to_take(needs: Mapping[str, Amount], device: SliceDevice, *, fractional: bool) -> dict[str, Amount] | str:
    """What a request takes of each capacity, or why the device does not do.

    ``needs`` are the request's amounts by capacity name as the device publishes it. A capacity that is not asked for
    is taken by its policy's default, or in full.

    Raises CapacityOverflowError for an amount that is negative or cannot be rounded.
    """
    if missing := next((name for name in sorted(needs) if name not in device.capacity), None):
        return f"no capacity {missing}"
    takes = {
        name: _amount_to_take(name, needs.get(name), device.capacity[name], fractional)
        for name in sorted(device.capacity)
    }
    for name, amount in takes.items():
        if amount.nano < 0:
            raise CapacityOverflowError(
                f"capacity {name}: {amount} is negative; correct the device's capacity or policy"
            )
    for name, amount in takes.items():
        capacity = device.capacity[name]
        if (why := _violation(amount, capacity.policy, fractional)) is not None:
            return f"takes {amount} of {name}, {why}"
        if amount.nano > capacity.value.nano:
            return f"{amount} of {name} needed, {capacity.value} there"
    return takes


def _amount_to_take(name: str, need: Amount | None, capacity: DeviceCapacity, fractional: bool) -> Amount:
    policy = capacity.policy
    if need is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return need
    if policy.range is not None:
        return _round_to_step(name, need, policy.range, fractional)
    return next((value for value in policy.values if need.nano <= value.nano), need)


def _round_to_step(name: str, need: Amount, offered: CapacityRange, fractional: bool) -> Amount:
    """The least amount of a range that is not below what is asked for."""
    if need.nano < offered.least.nano:
        return offered.least
    if offered.step is None:
        return need
    if _counts_in_milli(offered, fractional):
        unit, have = MILLI, need.milli
    else:
        unit, have = NANO, need.units if need.nano <= MAX_INT64 * NANO else None
    if have is not None:
        least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
        rounded = least + step * -(-(have - least) // step)
        if rounded <= MAX_INT64:
            return Amount(rounded * unit, offered.step.format)
    digits = "thousandths" if unit == MILLI else "whole units"
    raise CapacityOverflowError(
        f"capacity {name}: {need} cannot be rounded to steps of {offered.step} in 64-bit {digits}; ask for less"
    )


def _counts_in_milli(offered: CapacityRange, fractional: bool) -> bool:
    """Whether a range is counted in thousandths: behind its gate, when all of it fits."""
    parts = (offered.least, offered.most, offered.step)
    return fractional and all(part is None or part.milli is not None for part in parts)


def _violation(amount: Amount, policy: CapacityRequestPolicy | None, fractional: bool) -> str | None:
    if policy is None or (policy.default is not None and amount.nano == policy.default.nano):
        return None
    if policy.range is not None:
        return _range_violation(amount, policy.range, fractional)
    if policy.values and all(amount.nano != value.nano for value in policy.values):
        return f"more than any valid value (at most {policy.values[-1]})"
    return None


def _range_violation(amount: Amount, offered: CapacityRange, fractional: bool) -> str | None:
    if offered.most is not None and amount.nano > offered.most.nano:
        return f"more than one request may have ({offered.most})"
    if offered.step is None:
        return None
    if _counts_in_milli(offered, fractional):
        unit, have = MILLI, amount.milli
    else:
        unit, have = NANO, amount.units
    least, step = -(-offered.least.nano // unit), -(-offered.step.nano // unit)
    if have is None or (have - least) % step:
        return f"which is not {offered.least} and a number of steps of {offered.step}"
    return None


MAX_RESTRICTED = 64
"""Different rules for nodes for which it is remembered what they leave of devices; then all are forgotten."""
_BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a device from being allocated; None and effects of the future do not."""


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """An empty key or effect of a toleration stands for all."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that blocks and is not tolerated."""
    tolerations = tuple(tolerations)
    return next(
        (t for t in taints if t.effect in _BLOCKING and not any(tolerates(one, t) for one in tolerations)),
        None,
    )


SELECTOR_FAILED = rule(RuleCode.SELECTOR_FAILED)
"""Leaves out devices that an expression fails on."""
_REMEDIES = {
    "attribute ": "ask who runs its driver to correct it",
    "no such key": "have it test first whether there is one",
    TOO_EXPENSIVE_ONCE: "simplify it",
}
"""How a selector's error begins, and what to do about it."""
_IN_USE = rule(RuleCode.IN_USE)


def _remedy_of(error: str) -> str:
    """What to do about an error of a selector."""
    remedies = (remedy for start, remedy in _REMEDIES.items() if error.startswith(start))
    return next(remedies, "change it, or ask who runs the driver")


@dataclass(frozen=True, slots=True)
class DeviceMismatch:
    """Why a device is not for a request: the rule of the funnel, and what there is to say of it."""

    rule: Rule
    why: str = ""
    error: str = ""
    """what is wrong with a selector or the device, if it could not be judged"""


_PLACES = {code: place for place, code in enumerate(RuleCode)}


def place_of(by: Rule) -> int:
    """The place of a rule in a funnel: what is left out by a later one is not left out by those before."""
    return _PLACES[by.code]


def _needs(code: RuleCode, feature: str) -> DeviceMismatch:
    return DeviceMismatch(rule(code, feature=feature), feature)


@dataclass(slots=True, eq=False)
class RequestVerdict:
    """What requests that ask for the same may take."""

    nodes: Sequence[frozenset[str]]
    """which nodes reach a device"""
    broken: frozenset[str]
    """nodes on which it is unknown what ``All`` is"""
    accepted: list[int] = field(default_factory=list)
    """devices to be had; for ``All`` every one that it must take"""
    takes: dict[int, Mapping[str, Amount]] = field(default_factory=dict)
    """shareable device -> what one share takes of it"""
    amounts: dict[int, dict[str, Amount] | str] = field(default_factory=dict)
    """capacity of devices -> what is taken of it, or why it does not do"""
    rejected: dict[Rule, list[tuple[int, str]]] = field(default_factory=dict)
    """rule -> (device, what there is to say)"""
    blocked: dict[int, DeviceMismatch] = field(default_factory=dict)
    """devices that ``All`` must take and cannot have"""
    errors: list[str] = field(default_factory=list)
    """devices that could not be judged"""
    binds: bool = False
    """one of the accepted devices binds the claim to its node"""
    _candidates: Candidates | None = None

    def candidates(self, class_name: str) -> Candidates:
        """The same for the core, one object for all that ask for the same."""
        if self._candidates is None:
            by_step = {by: [*devices] for by, devices in self.rejected.items()}
            for index, mismatch in self.blocked.items():
                by_step.setdefault(mismatch.rule, []).append((index, mismatch.why))
            rows = sorted(by_step.items(), key=lambda row: place_of(row[0]))
            steps = [FunnelStep(by, tuple(i for i, _ in devices), devices[0][1] or None) for by, devices in rows]
            # ``All`` cannot have all there.
            barred = self.broken.union(*(self.nodes[index] for index in self.blocked))
            # A device that a barred node shares with others is to be had on these.
            offered = [index for index in self.accepted if not self.nodes[index] <= barred] if barred else self.accepted
            accepted = dict.fromkeys(offered, class_name)
            self._candidates = Candidates(accepted, tuple(steps), frozenset(self.blocked), barred)
        return self._candidates

    @property
    def is_tainted(self) -> bool:
        """Whether taints keep the requests from devices that they choose."""
        return any(by.code in (RuleCode.TAINT, RuleCode.LABELLED_CLAIMS) for by in self.rejected)


@dataclass(frozen=True, slots=True)
class RequestCandidates:
    """A request that stands alone, or one alternative, and what it may take."""

    subrequest: SubRequest
    verdict: RequestVerdict
    judge: RequestJudge
    """who can be asked what it might take if it asked for something else"""
    restrictions: tuple[NodeRestriction, ...] = ()

    @property
    def size(self) -> int:
        """How many devices it takes on a single node."""
        return len(self.verdict.accepted) if self.subrequest.is_all else self.subrequest.count

    def candidates(self) -> Candidates:
        every = self.verdict.candidates(self.subrequest.class_name)
        return self.judge.off_barred_nodes(every, self.restrictions) if self.restrictions else every


@dataclass(slots=True)
class RequestJudge:
    """Judges devices for requests; what asks for the same is judged once."""

    gates: frozenset[str]
    devices: Sequence[Device]
    usage: DeviceUsage
    selectors: Judge
    classes: Mapping[str, ResourceDeviceClass]
    broken: frozenset[str] = frozenset()
    """nodes with a pool that is incomplete or invalid"""
    reached: Sequence[frozenset[str]] | None = None
    """the nodes that reach each device; None: as it is published"""
    _is_in_use: bool = field(init=False)
    """whether anything is"""
    _faults: Mapping[int, str] = field(init=False)
    """devices with an attribute that no selector can read, and what is wrong with it"""
    _overdrawn: dict[int, str] = field(init=False)
    _reached: Sequence[frozenset[str]] = field(init=False)
    _verdicts: dict[object, RequestVerdict] = field(default_factory=dict)
    _restricted: dict[object, tuple[Candidates, Candidates]] = field(default_factory=dict)
    """what rules for nodes leave of candidates, by the identity of these; with these, which that keeps alive"""
    _nodes: frozenset[str] | None = None
    """all that reach a device"""
    _wider: RequestJudge | None = None

    @property
    def size(self) -> int:
        """Verdicts that are remembered."""
        return len(self._verdicts) + (0 if self._wider is None else len(self._wider._verdicts))

    def with_class(self, added: ResourceDeviceClass) -> RequestJudge:
        """The same judge with one class more, the same one whenever it is asked for."""
        if self._wider is None:
            self._wider = replace(self, classes={**self.classes, added.name: added}, _verdicts={})
        return self._wider

    def has_classes(self, classes: Mapping[str, ResourceDeviceClass]) -> bool:
        """Whether these classes select what its own do."""
        selecting = ((one.name, one.selectors) for one in classes.values())
        return dict(selecting) == {one.name: one.selectors for one in self.classes.values()}

    def __post_init__(self) -> None:
        self._is_in_use = bool(self.usage.whole or self.usage.shared)
        offers = [*map(published_device, self.devices)]
        pairs = zip(self.devices, offers, strict=True)
        self._faults = {device.index: str(cel_device(offer)) for device, offer in pairs if offer.device.has_fault}
        self._overdrawn = overdrawn_counters(offers, self.usage)
        self._reached = [offer.nodes for offer in offers] if self.reached is None else self.reached

    def eligible(self, subrequest: SubRequest) -> Eligible:
        """What decides by expressions about a device for a request, which was chosen for before."""
        predicate = self.selectors.predicate
        of_class = tuple(map(predicate, self.classes[subrequest.class_name].selectors))
        drivers = next((one.drivers for one in of_class if one.drivers is not None), None)
        return Eligible(self.selectors, (ClassRule(drivers, of_class),), tuple(map(predicate, subrequest.selectors)))

    def off_barred_nodes(self, every: Candidates, restrictions: tuple[NodeRestriction, ...]) -> Candidates:
        """The candidates that are to be had where a claim may be. Raises OutOfTime."""
        key = id(every), restrictions
        if key not in self._restricted:
            if self.selectors.allowance.is_over:
                raise OutOfTime(OUT_OF_TIME)
            if self._nodes is None:
                self._nodes = frozenset[str]().union(*self._reached)
            if len(self._restricted) >= MAX_RESTRICTED:
                self._restricted.clear()
            barred = barred_nodes(restrictions, self._nodes)
            self._restricted[key] = every, without_nodes(every, barred, self._reached.__getitem__)
        return self._restricted[key][1]

    def choose(
        self, claim: ResourceClaim, subrequest: SubRequest, restrictions: tuple[NodeRestriction, ...] = ()
    ) -> RequestCandidates:
        """Judge every device; ``restrictions``: rules by which the claim keeps off nodes.

        Raises AllocationError for an expression or an amount that is wrong in itself, or an expression that is too
        expensive; OutOfTime, with the expression that there was no time for; and in a turn of a claim
        CommonBudgetExceeded.
        """
        key = (
            subrequest.class_name,
            subrequest.selectors,
            subrequest.is_all,
            subrequest.admin,
            subrequest.tolerations,
            *sorted(subrequest.capacity.items()),
        )
        where = f"claim {claim.title}, request {subrequest.name}"
        self._check(subrequest, where)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(subrequest, where)
        return RequestCandidates(subrequest, self._verdicts[key], self, restrictions)

    def _judge(self, subrequest: SubRequest, where: str) -> RequestVerdict:
        verdict = RequestVerdict(self._reached, self.broken if subrequest.is_all else frozenset())
        reached = [device for device, nodes in zip(self.devices, self._reached, strict=True) if nodes]
        mismatches = self._unselected(subrequest, reached, where)
        for device in reached:
            index = device.index
            mismatch = mismatches.get(index) or self._capacity(verdict, subrequest, device, where)
            if mismatch is not None:
                if mismatch.error:
                    verdict.errors.append(mismatch.error)
                verdict.rejected.setdefault(mismatch.rule, []).append((index, mismatch.why))
                continue
            barred = self._bar(verdict, subrequest, device)
            if barred is None or subrequest.is_all:
                verdict.accepted.append(index)
                verdict.binds = verdict.binds or published_device(device).binds
            if barred is not None and subrequest.is_all:
                verdict.blocked[index] = barred
            elif barred is not None:
                verdict.rejected.setdefault(barred.rule, []).append((index, barred.why))
        verdict.amounts.clear()
        return verdict

    def _check(self, subrequest: SubRequest, where: str) -> None:
        """Compile all expressions, and charge the claim for its own as far as they were evaluated before."""
        chosen = self.classes[subrequest.class_name]
        for at, expressions, is_of_class in (
            (f"class {chosen.name}", chosen.selectors, True),
            (where, subrequest.selectors, False),
        ):
            for number, expression in enumerate(expressions):
                with self._located(f"{at}: selector #{number}"):
                    try:
                        self.selectors.predicate(expression, is_of_class=is_of_class)
                    except ExpressionError as error:
                        message = f"CEL compile error: {error}; correct the expression"
                        raise ExpressionError(ExpressionRefusal(message)) from None
                    self.selectors.charge(expression)

    @contextmanager
    def _located(self, where: str) -> Iterator[None]:
        """Say which selector was wrong or too expensive, or there was no time for."""
        try:
            yield
        except OutOfTime:
            raise OutOfTime(f"{where}: {OUT_OF_TIME}") from None
        except CommonBudgetExceeded:
            refusal = self.selectors.refuse_common()
        except ExpressionError as error:
            refusal = error.refusal
        else:
            return
        raise AllocationError(f"{where}: {refusal.message}", exceeded=refusal.exceeded)

    def _unselected(self, subrequest: SubRequest, devices: Iterable[Device], where: str) -> dict[int, DeviceMismatch]:
        """Why devices are not candidates of the request, whether they are in use or not, but for their capacities."""
        mismatches: dict[int, DeviceMismatch] = {}
        left: list[Device] = []
        for device in devices:
            mismatch = self._withheld(subrequest, published_device(device))
            if mismatch is None:
                left.append(device)
            else:
                mismatches[device.index] = mismatch
        chosen = self.classes[subrequest.class_name]
        of_class = f"class {chosen.name}"
        by_class = rule(RuleCode.CLASS_SELECTOR, device_class=chosen.name)
        selecting = [(by_class, of_class, f"{of_class}, ", chosen.selectors)]
        selecting.append((rule(RuleCode.REQUEST_SELECTOR), where, "", subrequest.selectors))
        for by, at, prefix, expressions in selecting:
            for number, expression in enumerate(expressions):
                with self._located(f"{at}: selector #{number}"):
                    outcomes = self.selectors.verdicts(expression, left, self._faults)
                failed, passed = DeviceMismatch(by, one_line(expression)), []
                for device, outcome in zip(left, outcomes, strict=True):
                    if outcome is True:
                        passed.append(device)
                    elif outcome is False:
                        mismatches[device.index] = failed
                    else:
                        title = published_device(device).title
                        message = f"{prefix}selector #{number} fails on device {title}: {outcome}"
                        error = f"{message}; {_remedy_of(outcome)}"
                        mismatches[device.index] = DeviceMismatch(SELECTOR_FAILED, outcome, error)
                left = passed
        return mismatches

    def _withheld(self, subrequest: SubRequest, offer: PublishedDevice) -> DeviceMismatch | None:
        """Why a device is not a candidate, regardless of selectors."""
        if offer.pool.state is not PoolStatus.COMPLETE:
            return DeviceMismatch(
                rule(RuleCode.POOL_STATE, state=offer.pool.state.value), f"{offer.pool.title}: {offer.pool.why}"
            )
        if offer.device.binding_conditions and gate.BINDING_CONDITIONS not in self.gates:
            return _needs(RuleCode.BINDING_CONDITIONS, gate.BINDING_CONDITIONS)
        return None if subrequest.is_all else self._in_use(subrequest, offer)

    def _capacity(
        self, verdict: RequestVerdict, subrequest: SubRequest, device: Device, where: str
    ) -> DeviceMismatch | None:
        if gate.CONSUMABLE_CAPACITY not in self.gates:
            return None
        offer = published_device(device)
        try:
            amounts = verdict.amounts.get(id(offer.device.capacity))
            if amounts is None:
                fractional = gate.FRACTIONAL_RANGE in self.gates
                amounts = amounts_to_take(subrequest.capacity, offer.device, fractional=fractional)
                verdict.amounts[id(offer.device.capacity)] = amounts
        except CapacityOverflowError as error:
            path = f"{subrequest.path}.capacity.requests"
            raise AllocationError(f"{where}: {path}: checking capacity for device {offer.title}: {error}") from None
        if isinstance(amounts, str):
            return DeviceMismatch(rule(RuleCode.CAPACITY), amounts)
        if offer.is_shareable:
            verdict.takes[device.index] = amounts
        return None

    def _bar(self, verdict: RequestVerdict, subrequest: SubRequest, one: Device) -> DeviceMismatch | None:
        """Why a device that the request is about cannot be had."""
        offer = published_device(one)
        device = offer.device
        if (used := self._in_use(subrequest, offer)) is not None:
            return used
        if offer.slice.spec.skip_node_operations:
            return _needs(RuleCode.NODE_OPERATIONS, gate.OPTIONAL_NODE_OPERATIONS)
        if device.uses_allocatable and gate.NODE_ALLOCATABLE in self.gates:
            return _needs(RuleCode.NODE_ALLOCATABLE, gate.NODE_ALLOCATABLE)
        if device.consumes and gate.PARTITIONABLE_DEVICES not in self.gates:
            return _needs(RuleCode.COUNTERS_OFF, gate.PARTITIONABLE_DEVICES)
        if self._draws(subrequest, offer) and (over := self._overdrawn.get(id(offer.pool))) is not None:
            return DeviceMismatch(rule(RuleCode.OVERDRAWN), f"{over} of {offer.pool.title}")
        if (
            device.taints
            and gate.DEVICE_TAINTS in self.gates
            and (taint := blocking_taint(device.taints, subrequest.tolerations)) is not None
        ):
            if (taint.key, taint.value) == (ALLOCATOR_KEY, DEVALLOC):
                return DeviceMismatch(rule(RuleCode.LABELLED_CLAIMS))
            value = f"={taint.value}" if taint.value else ""
            return DeviceMismatch(rule(RuleCode.TAINT), f"{taint.key}{value}:{taint.effect}")
        return self._exhausted(verdict, subrequest, one)

    def _draws(self, subrequest: SubRequest, offer: PublishedDevice) -> bool:
        """Whether giving the device draws counters: admin access never does, nor one more share."""
        more = offer.is_shareable and offer.id in self.usage.shared
        return bool(offer.device.consumes) and not subrequest.admin and not more

    def _in_use(self, subrequest: SubRequest, offer: PublishedDevice) -> DeviceMismatch | None:
        if subrequest.admin or not self._is_in_use:
            return None
        if offer.id in self.usage.whole:
            return DeviceMismatch(_IN_USE)
        if offer.id in self.usage.shared and not offer.is_shareable:
            return DeviceMismatch(_IN_USE, "in shares")
        return None

    def _exhausted(self, verdict: RequestVerdict, subrequest: SubRequest, device: Device) -> DeviceMismatch | None:
        if subrequest.admin or not device.shareable:
            return None
        offer = published_device(device)
        used = self.usage.shared.get(offer.id, {})
        for name, amount in verdict.takes[device.index].items():
            capacity = offer.device.capacity[name].value
            left = capacity.nano - used.get(name, 0)
            if amount.nano > left:
                shown = Amount(max(0, left), capacity.format)
                why = f"{shown} of {capacity} {name}, {amount} requested"
                return DeviceMismatch(rule(RuleCode.CAPACITY_LEFT), why)
        return None
