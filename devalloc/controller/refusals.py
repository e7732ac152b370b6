"""A refusal as a picture of what is in the way: how many devices each rule leaves, what would have to change, and what
to do. Of the solver's answer about one claim or machine, for a terminal and for the page. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from devalloc.api.cordon import is_cordon_or_unschedulable, unschedulable_reasons
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, DEVALLOC, is_dedicated
from devalloc.api.findings import ARE_EXCLUDED, Cause, RuleCode
from devalloc.api.findings.style import WHOLE, Style
from devalloc.api.host_pool_names import HUGE_PAGES
from devalloc.api.meta import UNAVAILABLE
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.api.reasons import Reason, find_reason

Answer = Mapping[str, Any]
_AT_LENGTH = Style(WHOLE)
LayerKind = Literal["all", "out", "match", "held", "excluded", "free"]
"""Of devices: all, those that a rule leaves out, those that match, and of these the ones in use, without what they need
of their card, and free."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Devices of which the same is true."""

    kind: LayerKind
    count: int
    what: str
    example: str = ""
    start: int = 0
    """Where the layer begins in a picture in which all devices are beside each other."""


@dataclass(frozen=True, slots=True)
class Funnel:
    """How the devices of the fleet become those that a request can get."""

    request: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something that would have to change."""

    kind: str
    which: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is in the way of a claim or machine."""

    reason: str
    message: str
    funnels: tuple[Funnel, ...]
    obstacles: tuple[Obstacle, ...]
    advice: str
    """What to do; "" if the message says it."""


def refusal_of(answer: Answer, *, is_cluster: bool = False) -> Refusal:
    """The refusal in an answer of the solver. ``is_cluster``: about objects of a cluster, where `devalloc up` helps
    nothing."""
    funnels, blockers = answer.get("funnel", []), answer.get("blockers", [])
    supply = _supply_advice(answer, _PUBLISH_TO_CLUSTER if is_cluster else _PUBLISH)
    return Refusal(
        answer["reason"] or "",
        answer["message"] or "",
        tuple(_funnel(each) for each in funnels),
        () if supply else obstacles_of(blockers),  # no change of the claim would help
        supply or _advice(answer),
    )


def obstacles_of(blockers: Sequence[Answer]) -> tuple[Obstacle, ...]:
    """Blockers of an answer, in words."""
    return tuple(Obstacle(kind, _AT_LENGTH.text(which)) for kind, which in map(_blocker, blockers))


def _supply_advice(answer: Answer, publish: str) -> str:
    """What to do where there are no devices at all, or none of the driver: ``publish`` some; "" elsewhere."""
    funnels = answer.get("funnel", [])
    is_empty = bool(funnels) and not any(funnel["devices"] for funnel in funnels)
    if is_empty and answer.get("unreachedDevices"):
        return _GIVE_NODES
    if is_empty or answer.get("missingDrivers"):
        return _CORRECT_POOL if answer.get("invalidPools") else publish
    return ""


def _advice(answer: Answer) -> str:
    code, funnels, blockers = answer["reason"], answer.get("funnel", []), answer.get("blockers", [])
    steps = {step["code"]: step for funnel in reversed(funnels) for step in funnel["steps"]}
    if (labelled := steps.get(RuleCode.LABELLED_CLAIMS)) is not None:
        return " ".join([_label_advice(labelled), *(_advice_of_reason(code, blockers) if blockers else ())])
    taint = [_taint_advice(steps[RuleCode.TAINT])] if RuleCode.TAINT in steps and not blockers else []
    specific = [*taint, *_corrections(blockers)]
    if whole := _whole_devices_advice(answer):
        return " ".join([*specific, whole])
    return " ".join([*specific, *_advice_of_reason(code, blockers)])


def _corrections(blockers: Sequence[Answer]) -> Iterator[str]:
    """What to write for what was most likely mistyped."""
    for one in blockers:
        if "written" in one and "didYouMean" in one:
            attribute = "device." if f"device.{one['written']}" in one.get("expression", "") else ""
            yield f"Write {attribute}{one['didYouMean']} instead of {attribute}{one['written']} in {one['path']}."


def _whole_devices_advice(answer: Answer) -> str:
    """What to do where a request wants an amount of devices that share none of it; "" elsewhere."""
    kinds = ("request", "amount")
    dropped = {
        one["request"]
        for one in answer.get("blockers", ())
        if one["kind"] in kinds and "request" in one and "most" not in one
    }
    hopeless = [one for one in answer.get("funnel", ()) if not one["matching"] and _detail(one) in dropped]
    lacking = (each["resource"] for each in answer.get("causes", ()) if each["code"] == Cause.TOO_LITTLE)
    if not hopeless or (resource := next(lacking, None)) is None:
        return ""
    return (
        f"Devices of this class share no {resource}: leave the amount out, and choose them by attribute in constraints."
    )


def _detail(funnel: Answer) -> str:
    """The request of an alternative."""
    return str(funnel["request"]).partition(".")[0]


def _taint_advice(step: Answer) -> str:
    """What to do where taints keep devices back."""
    return _MAKE_AVAILABLE if str(step.get("example", "")).startswith(UNAVAILABLE) else _TOLERATE


def _label_advice(step: Answer) -> str:
    """What to do where only devalloc's controller allocates devices that match."""
    driver, _, rest = str(step["devices"][0]).partition("/")
    why = "their nodes are set aside" if is_dedicated(rest.rpartition("/")[0]) else f"driver {driver} is adopted"
    return f"Label the claim {ALLOCATOR_KEY}={DEVALLOC}, or its namespace: {why}."


def _advice_of_reason(code: str | None, blockers: Sequence[Answer]) -> Iterator[str]:
    """How to take back cordons that are in the way, and then the advice of the reason, if it is about anything else."""
    cordons = [one for one in blockers if is_cordon_or_unschedulable(one)]
    yield from dict.fromkeys(sentence for one in cordons for sentence in _cordon_advice(one))
    rest = [one["kind"] for one in blockers if not is_cordon_or_unschedulable(one)]
    reason = find_reason(code)
    if cordons and rest and {*rest} <= {"claim", "machine"}:
        reason = Reason.DEVICES_IN_USE
    if reason is not None and reason.advice and (rest or not cordons):
        yield reason.advice


def _cordon_advice(blocker: Answer) -> Iterator[str]:
    if "device" in blocker:
        yield "`devalloc cordon` lists what is cordoned, and `devalloc uncordon NAME` allows it again."
        return
    yield from (reason.advice.format(node=blocker["node"]) for reason in unschedulable_reasons(blocker["why"]))
    if others := blocker.get("otherNodes"):
        more = f" or {len(others) - _NODES_SHOWN} more" if len(others) > _NODES_SHOWN else ""
        which = f"One of these nodes ({', '.join(others[:_NODES_SHOWN])}{more})" if others[1:] else f"Node {others[0]}"
        yield f"{which} would do instead."


_NODES_SHOWN = 3


_PUBLISH = (
    "Publish devices: run `devalloc up`, or the node plugin (`devalloc node`), on a host that has some, or apply "
    "DevicePools (ResourceSlices for ResourceClaims). `devalloc discover` shows what this host would publish."
)
"""Where there are no devices at all."""
_PUBLISH_TO_CLUSTER = (
    "Publish devices: let the node plugin run on nodes that have some (`kubectl get nodes -L devalloc.io/publish`), or "
    "apply DevicePools (ResourceSlices for ResourceClaims)."
)
_CORRECT_POOL = "Correct that pool, or rename one of two; `devalloc validate -f` shows every error of a file."
"""Where the devices are of pools that are left out."""
_TOLERATE = "Tolerate the taint in the request (`tolerations`), or have its driver or DeviceTaintRule remove it."
"""Where devices have taints, and nothing else is in the way."""
_MAKE_AVAILABLE = (
    "Correct on its node what makes the device unavailable: the value of the taint says what (docs/inventory.md)."
)
"""Where the node plugin set the taint: to tolerate it would give a device that cannot be bound."""
_GIVE_NODES = "Give the Node objects too (`kubectl get nodes -o yaml`), or correct the node selectors of the slices."
"""Where all devices select nodes that are not there."""


def _blocker(blocker: Answer) -> tuple[str, str]:
    """Kind and name of a blocker, with numbers, and with the most likely correction."""
    kind, path = blocker["kind"], blocker.get("path", "")
    match kind:
        case "claim" | "machine":
            return kind, f"{blocker['namespace']}/{blocker['name']} (priority {blocker['priority']})"
        case "member":
            return "group member", f"{blocker['namespace']}/{blocker['name']}"
        case "node" if "pool" in blocker:
            return kind, f"{blocker['node']}, which does not reach pool {blocker['driver']}/{blocker['pool']}"
        case "node":
            bound = ", ".join(f"{one['namespace']}/{one['name']}" for one in blocker.get("boundBy", ()))
            return (
                kind,
                f"{blocker['node']}, where {bound} is"
                if bound
                else f"{blocker['node']} ({path or 'devalloc.io/node'})",
            )
        case "nodeRule":
            return "rule for nodes", blocker["annotation"]
        case "poolResource":
            return (
                "pool resource",
                f"{_pool(blocker)}: {blocker['resource']} {blocker['capacity']}, {blocker['missing']} too little",
            )
        case "compatibilityGroup":
            return "compatibility group", _pool(blocker)
        case "unavailable" if "device" not in blocker:
            return "unavailable node", f"{blocker['node']}: {blocker['why']}"
        case "unavailable":
            where = f" of node {blocker['node']}" if blocker["node"] else ""
            return "unavailable device", f"{blocker['pool']}/{blocker['device']}{where}: {blocker['why']}"
        case "undefinedResource":
            return (
                "undefined resource",
                f"{_pool(blocker)}: {blocker['resource']}, which {blocker['devices'][0]} requests",
            )
        case "taint":
            taint = f"{blocker.get('key')}={blocker.get('value', '')}:{blocker.get('effect')}"
            return kind, f"{taint} of {_device(blocker)}"
        case "counter":
            which = f"{blocker['counterSet']}/{blocker['counter']} of pool {blocker['driver']}/{blocker['pool']}"
            return kind, f"{which}: {blocker['missing']} too little"
        case "device":
            return "device in use", _device(blocker)
        case "pool":
            return kind, f"{blocker['driver']}/{blocker['pool']}, which is {blocker['state']}: {blocker['why']}"
        case "feature":
            return kind, f"{blocker['feature']}, which is off"
        case "config":
            which = f"{path}: {blocker['configKind']} {blocker['namespace']}/{blocker['name']}"
        case "amount":
            pages = [
                f" of huge pages of {size}" for size, name in HUGE_PAGES.items() if name == blocker.get("resource")
            ]
            amounts = [Quantity.parse(blocker[name]) for name in ("requested", "most") if name in blocker]
            requested, *most = readable_texts(*amounts)
            fits = f"at most {most[0]} fits" if most else "no device shares it"
            which = f"{path}: {requested}{''.join(pages)}, {fits}"
        case "limit":
            which = f"{path}: {blocker['limit']}"
        case "matchAttribute":
            kind, which = "match attribute", f"{blocker['attribute']} in {path}"
        case _:
            field = path.rpartition(".")[2]
            detail = next((blocker[key] for key in (field, *_CONTENT) if key in blocker), "")
            which = ": ".join(filter(None, (path, detail)))
    if "didYouMean" in blocker:
        written = f" for {blocker['written']}" if "written" in blocker else ""
        which += f" (did you mean {blocker['didYouMean']}{written}?)"
    if "machine" in blocker:
        which = f"machine {blocker['machine']}: {which}"
    return kind, ": ".join(filter(None, (blocker.get("claim"), which)))


_CONTENT = ("expression", "matchAttribute", "distinctAttribute", "deviceClassName", "requested")
"""What is at the path of a blocker, if its key is not the name of the field."""


def _device(blocker: Answer) -> str:
    return f"{blocker['driver']}/{blocker['pool']}/{blocker['device']}"


def _pool(blocker: Answer) -> str:
    return f"{blocker['pool']} of node {blocker['node']}" if blocker["node"] else str(blocker["pool"])


def _funnel(funnel: Answer) -> Funnel:
    left = funnel["devices"]
    layers = [Layer("all", left, "in the fleet")]
    for step in funnel["steps"]:
        left = max(0, left - step["count"])
        what, example = _AT_LENGTH.text(step["what"]), _AT_LENGTH.text(step.get("example") or _names(step))
        layers.append(Layer("out", step["count"], what, example, left))
    left = funnel["matching"]
    layers.append(Layer("match", left, "match"))
    if funnel["inUse"]:
        left = max(0, left - funnel["inUse"])
        layers.append(Layer("held", funnel["inUse"], "of those are in use", _users_text(funnel), left))
    if excluded := funnel.get("excluded"):
        layers.append(Layer("excluded", excluded, ARE_EXCLUDED, start=max(0, left - excluded)))
    layers.append(Layer("free", funnel["free"], "are free"))
    return Funnel(f"{funnel['request']}{_alternative(funnel['request'])}", tuple(layers))


def _names(step: Answer) -> str:
    first = str(step["devices"][0])
    return first if step["count"] == 1 else f"{first}, {step['count'] - 1} more"


def _alternative(request: str) -> str:
    field = "oneOf" if "." in request else "firstAvailable" if "/" in request else None
    return "" if field is None else f" (an alternative of {field})"


def _users_text(funnel: Answer) -> str:
    """Who has the devices; "" for a funnel of resource.k8s.io, whose message names them."""
    users = [f"{user['namespace']}/{user['name']} ({user['count']})" for user in funnel.get("usedBy", ())]
    count = funnel.get("users", 0)
    return ", ".join(users[:3]) + (f", {count - 3} more" if count > 3 else "")
