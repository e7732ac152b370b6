"""What the plugin knows of claims and devices, as messages of ``devalloc.node.v1``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from devalloc.api.pool import AttributeValue, DevicePool, unavailability
from devalloc_node.binding.binding import HealthState
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import ClaimState, StepRecord
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import PreparedDevice, Step
from devalloc_node.operations.claim_registry import HeldClaim
from devalloc_node.pb import node_pb2 as pb

_STATES = {
    ClaimState.PREPARING: pb.Claim.PREPARING,
    ClaimState.PREPARED: pb.Claim.PREPARED,
    ClaimState.UNPREPARING: pb.Claim.UNPREPARING,
}
_HEALTH = {
    "healthy": pb.Device.HEALTHY,
    "unhealthy": pb.Device.UNHEALTHY,
    "unknown": pb.Device.UNKNOWN,
}
MESSAGE = 4096
"""Maximum characters of a message; a longer one is cut."""


def done() -> pb.Result:
    return pb.Result(outcome=pb.Result.DONE)


def result(error: NodeError) -> pb.Result:
    """What became of it: denied and failed are sure, everything else is not."""
    outcome = pb.Result.UNKNOWN
    if isinstance(error, Denied):
        outcome = pb.Result.DENIED
    elif isinstance(error, Failed):
        outcome = pb.Result.FAILED
    return pb.Result(outcome=outcome, code=error.code, message=cut(error.message), retryable=error.retryable)


def ref(claim: ClaimRef) -> pb.ClaimRef:
    return pb.ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def step(one: Step, *, is_done: bool = False, problem: str = "") -> pb.Step:
    return pb.Step(
        kind=one.kind,
        target=one.target,
        before=_json(one.before),
        after=_json(one.after),
        shared=one.shared or "",
        done=is_done,
        problem=cut(problem),
    )


def step_of_record(one: StepRecord) -> pb.Step:
    return step(one.step, is_done=one.state == "done", problem=one.problem)


def claim(held: HeldClaim, *, steps: bool) -> pb.Claim:
    record = held.record
    problems = [one.problem for one in held.steps if one.state == "stuck"]
    prepared = held.prepared
    return pb.Claim(
        claim=ref(record.ref),
        state=pb.Claim.STUCK if problems else _STATES[record.state],
        devices=[] if prepared is None else [_device(one, prepared.cdi_ids) for one in prepared.devices],
        steps=[step_of_record(one) for one in held.steps] if steps else [],
        machines=sorted({plug.machine for plug in held.plugs}),
        message=cut("; ".join(problems)),
    )


def _device(device: PreparedDevice, cdi_ids: Mapping[str, tuple[str, ...]]) -> pb.PreparedDevice:
    return pb.PreparedDevice(
        requests=device.requests,
        pool=device.pool,
        device=device.device,
        binding=device.binding,
        functions=device.functions,
        mdev_uuid=device.mdev_uuid or "",
        sysfsdev=device.sysfsdev or "",
        nodes=device.nodes,
        attributes={name: str(value) for name, value in device.attributes.items()},
        admin=device.admin,
        share=device.share or "",
        cdi_ids=cdi_ids.get(device.key, ()),
    )


def devices(
    pools: Iterable[DevicePool], held: Iterable[HeldClaim], health: Mapping[tuple[str, str], HealthState]
) -> dict[tuple[str, str], pb.Device]:
    """The devices of pools by pool and name, with who holds them."""
    by_name: dict[tuple[str, str], pb.Device] = {}
    for pool in sorted(pools, key=lambda one: one.metadata.name):
        for device, attributes in sorted(pool.spec.effective_attributes.items()):
            key = (pool.metadata.name, device)
            by_name[key] = _published(key, attributes, health.get(key))
    for one in held:
        for prepared in one.prepared.devices if one.prepared is not None else ():
            at = by_name.get((prepared.pool, prepared.device))
            if at is not None:
                at.claims.append(ref(one.record.ref))
                at.machines.extend(sorted({plug.machine for plug in one.plugs if plug.device == prepared.name}))
    return by_name


def _published(key: tuple[str, str], effective: Mapping[str, AttributeValue], health: HealthState | None) -> pb.Device:
    attributes = {name: str(value) for name, value in effective.items()}
    return pb.Device(
        pool=key[0],
        device=key[1],
        kind=attributes.get("kind", ""),
        function=attributes.get("function", ""),
        address=attributes.get("pciBusID", ""),
        driver=attributes.get("driver", ""),
        state=attributes.get("state", ""),
        unavailable=unavailability(effective) or "",
        health=pb.Device.UNKNOWN if health is None else _HEALTH[health.state],
        health_message="" if health is None else cut(health.message),
    )


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def cut(text: str) -> str:
    """Cut a message that is too long."""
    return text if len(text) <= MESSAGE else text[: MESSAGE - 1] + "…"
