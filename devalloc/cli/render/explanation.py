"""The solver's answers as tables, and the answer to one claim at length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from devalloc.api.cordon import is_cordon_or_unschedulable, unschedulable_reasons
from devalloc.api.host_pool_names import HUGE_PAGES
from devalloc.api.quantity import Quantity, readable_texts
from devalloc.api.reasons import Reason, find_reason
from devalloc.api.views import format_devices
from devalloc.cli.render.output import Cell, StyledText, print_table
from devalloc.cli.terminal import print_heading, print_line

Answer = Mapping[str, Any]


def print_answers(claims: Sequence[Answer], *, wide: bool = False, machines: bool = False) -> None:
    """Print a row for each claim or machine: its node and devices, or why it has none."""
    rows: list[list[Cell]] = []
    for claim in claims:
        name = f"{claim['namespace']}/{claim['name']}"
        if claim["allocated"]:
            devices = format_devices(claim["allocations"], limit=None if wide else 4)
            rows.append(
                [name, StyledText("yes", "green"), claim["node"] or "(network)", devices + _chosen_alternatives(claim)]
            )
        else:
            message = claim["message"] if wide else (claim["message"] or "").split("\n")[0]
            rows.append([name, StyledText("no", "red"), "", f"{claim['reason']}: {message}"])
    head = ["MACHINE", "PLACED", "NODE", "WITH, OR WHY NOT"] if machines else ["CLAIM", "ALLOCATED", "NODE"]
    print_table(head if machines else [*head, "DEVICES, OR WHY NOT"], rows, wide=wide)


def _chosen_alternatives(claim: Answer) -> str:
    """The alternatives that were taken, other than first ones."""
    chosen = [index for index in claim.get("oneOf") or [] if index]
    return "".join(f" (alternative {index + 1})" for index in chosen)


def print_explanation(claim: Answer, *, only_would: bool = False, machine: bool = False, then: str = "") -> None:
    """Print the result for the claim or machine, and why. ``only_would``: it fits, but is not allocated yet; ``then``:
    how to get it allocated."""
    name = f"{claim['namespace']}/{claim['name']}"
    allocated = "placed" if machine else "allocated"
    if claim["allocated"]:
        where = f" on node {claim['node']}" if claim["node"] else ""
        verdict = f"is not {allocated} yet, but would be" if only_would else f"is {allocated}"
        print_line(f"{name} {verdict}{where}: {format_devices(claim['allocations'], limit=None)}")
        if only_would:
            then = then or "wait a moment; if nothing happens, check that `devalloc up` is running."
            print_line()
            print_line(f"What to do: {then}")
        if claim["reason"]:  # a machine whose spec now asks for more
            print_line()
            print_heading(f"The machine asks for more than it can get: {claim['reason']}")
            print_line(claim["message"])
    else:
        print_heading(f"{name} is not {allocated}: {claim['reason']}")
        print_line(claim["message"])
    if "machine" in claim:
        namespace, _, placed_with = claim["machine"].partition("/")
        where = "" if namespace == "default" else f" -n {namespace}"
        print_line(f"It is placed with machine {claim['machine']}: devalloc explain vm/{placed_with}{where}")
    for warning in claim.get("warnings", []):
        print_line(f"warning: {warning}")
    for funnel in claim.get("funnel", []):
        print_line()
        print_heading(f"Request {funnel['request']}{_alternative(funnel['request'])}")
        print_table(["DEVICES", "", "SUCH AS"], list(_funnel_rows(funnel)))
    funnels = claim.get("funnel", [])
    if funnels and not any(funnel["devices"] for funnel in funnels):  # no change of the claim would help
        advice = _CORRECT_POOL if claim.get("invalidPools") else _PUBLISH
        print_line("", f"What to do: {_GIVE_NODES if claim.get('unreachedDevices') else advice}")
        return
    if claim.get("missingDrivers"):
        print_line("", f"What to do: {_CORRECT_POOL if claim.get('invalidPools') else _PUBLISH}")
        return
    blockers = claim.get("blockers", [])
    print_blockers(blockers)
    is_tainted = any(step["what"] == _TAINTED for funnel in funnels for step in funnel["steps"])
    sentences = [*([_TOLERATE] if is_tainted and not blockers else []), *_advice(claim["reason"], blockers)]
    if advice := " ".join(sentences):
        print_line()
        print_line(f"What to do: {advice}")


def _advice(code: str | None, blockers: Sequence[Answer]) -> Iterator[str]:
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
_CORRECT_POOL = "Correct that pool, or rename one of two; `devalloc validate -f` shows every error of a file."
"""Where the devices are of pools that are left out."""
_TAINTED = "have a taint that is not tolerated"
_TOLERATE = "Tolerate the taint in the request (`tolerations`), or have its driver or DeviceTaintRule remove it."
"""Where devices have taints, and nothing else is in the way."""
_GIVE_NODES = "Give the Node objects too (`kubectl get nodes -o yaml`), or correct the node selectors of the slices."
"""Where all devices select nodes that are not there."""


def print_blockers(blockers: Sequence[Answer]) -> None:
    """Print a row for each blocker; nothing if there are none."""
    if blockers:
        print_line()
        print_heading("In the way")
        print_table(["WHAT", "WHICH"], [[*_blocker(blocker)] for blocker in blockers])


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
            requested, most = readable_texts(Quantity.parse(blocker["requested"]), Quantity.parse(blocker["most"]))
            which = f"{path}: {requested}{''.join(pages)}, at most {most} fits"
        case "limit":
            which = f"{path}: {blocker['limit']}"
        case "matchAttribute":
            kind, which = "match attribute", f"{blocker['attribute']} in {path}"
        case _:
            detail = next((blocker[field] for field in _CONTENT if field in blocker), "")
            which = f"{path}: {detail}" if detail else path
    if "didYouMean" in blocker:
        written = f" for {blocker['written']}" if "written" in blocker else ""
        which += f" (did you mean {blocker['didYouMean']}{written}?)"
    if "machine" in blocker:
        which = f"machine {blocker['machine']}: {which}"
    return kind, f"{blocker['claim']}: {which}" if "claim" in blocker else which


_CONTENT = (
    "expression",
    "deviceClass",
    "deviceType",
    "matchAttribute",
    "distinctAttribute",
    "deviceClassName",
    "requested",
)
"""What is at the path of a blocker, by kind."""


def _device(blocker: Answer) -> str:
    return f"{blocker['driver']}/{blocker['pool']}/{blocker['device']}"


def _pool(blocker: Answer) -> str:
    return f"{blocker['pool']} of node {blocker['node']}" if blocker["node"] else str(blocker["pool"])


def _funnel_rows(funnel: Answer) -> Iterable[list[Cell]]:
    yield [str(funnel["devices"]), "in the fleet", ""]
    for step in funnel["steps"]:
        yield [str(step["count"]), step["what"], step.get("example") or _names(step)]
    yield [str(funnel["matching"]), "match", ""]
    if funnel["inUse"]:
        yield [str(funnel["inUse"]), "of those are in use", _users_text(funnel)]
    if funnel.get("excluded"):
        yield [str(funnel["excluded"]), "are excluded: the card or its counters are taken", ""]
    yield [str(funnel["free"]), "are free", ""]


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
