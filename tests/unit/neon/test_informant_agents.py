"""Which agent counts for an informant, and what each is asked: the newest takes over, step by step, and falls back."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from devalloc.scaling.peer_json import RequestError
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import VersionRange
from devalloc_neon import informant_messages as wire
from devalloc_neon.informant import MOST_AGENTS, AgentCall, AgentRegistry
from devalloc_neon.informant_messages import INFORMANT_VERSIONS, InformantVersion

MEMORY = ResourceFlags(memory=True)


def uuid(number: int) -> UUID:
    return UUID(int=number)


def desc(number: int, least: int = 1, most: int = 4, address: str = "10.0.0.1:4000") -> wire.AgentDesc:
    versions = VersionRange(InformantVersion(least), InformantVersion(most))
    return wire.AgentDesc(uuid(number), address, versions)


class World:
    """Agents that answer at once and as they should, unless they are said not to."""

    def __init__(self, **options: VersionRange[InformantVersion]) -> None:
        self.agents = AgentRegistry(9100, **options)
        self.now = 0
        self.sequence = 0
        self.silent: set[UUID] = set()
        self.calls: list[tuple[str, int]] = []

    def answer(self, call: AgentCall) -> None:
        self.calls.append((call.endpoint.path, call.agent_id.int))
        self.sequence += 1
        silent = call.agent_id in self.silent
        self.agents.answered(call, "silence" if silent else wire.SequenceStamp(call.agent_id, self.sequence), self.now)

    def settle(self) -> list[tuple[str, int]]:
        """All that agents are asked until nothing is left to ask."""
        self.calls = []
        while calls := self.agents.calls(self.now):
            for call in calls:
                self.answer(call)
        return self.calls

    def register(self, one: wire.AgentDesc) -> wire.InformantDesc:
        self.answer(self.agents.register(one, self.now))
        chosen = self.agents.chosen(one.agent_id)
        self.agents.replied(one.agent_id)
        return chosen


def refusal(call: object, *arguments: object) -> int:
    with pytest.raises(RequestError) as refused:
        call(*arguments)  # type: ignore[operator]
    return refused.value.status


def resources_from(by: int, sequence: int = 1) -> wire.ResourcesMessage:
    return wire.ResourcesMessage(Resources(1000, 2**30), wire.SequenceStamp(uuid(by), sequence))


def test_an_agent_is_asked_who_it_is_before_it_is_known_and_resumed_once_it_knows() -> None:
    world = World()
    call = world.agents.register(desc(1), 0)
    assert (call.endpoint, call.body, call.timeout, call.host, call.port) == (wire.ID, b"{}", 250, "10.0.0.1", 4000)
    world.answer(call)
    assert world.agents.chosen(uuid(1)) == wire.InformantDesc(InformantVersion(4), 9100)
    assert (world.agents.calls(0), world.agents.active) == ([], None)
    world.agents.replied(uuid(1))
    (resume,) = world.agents.calls(0)
    assert (resume.endpoint, resume.body, resume.timeout) == (wire.RESUME, wire.encode_expected_agent(uuid(1)), 100)
    assert (world.agents.active, world.agents.calls(0)) == (None, [])
    world.answer(resume)
    assert (world.agents.active, world.agents.version) == (uuid(1), InformantVersion(4))


def test_the_newest_agent_takes_over_and_the_one_before_is_kept() -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    world.register(desc(2))
    (suspend,) = world.agents.calls(0)
    assert (suspend.endpoint, suspend.agent_id, suspend.timeout) == (wire.SUSPEND, uuid(1), 5000)
    assert world.agents.active is None
    world.answer(suspend)
    assert world.settle() == [("/resume", 2)]
    assert world.agents.active == uuid(2)
    assert world.agents.unregister(desc(2))
    assert world.settle() == [("/resume", 1)]
    assert world.agents.unregister(desc(1))
    assert (world.agents.active, world.settle()) == (None, [])


@pytest.mark.parametrize("when", ["resumed", "suspended", "checked"])
def test_a_silent_agent_is_dropped_and_the_newest_of_the_others_takes_over(when: str) -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    if when == "suspended":
        world.silent = {uuid(1)}
        world.register(desc(2))
        assert world.settle() == [("/suspend", 1), ("/resume", 2)]
        assert refusal(world.agents.check_health, uuid(1)) == 404
        return
    world.register(desc(2))
    world.answer(world.agents.calls(0)[0])
    if when == "checked":
        world.settle()
        world.now = 10_000
    world.silent = {uuid(2)}
    calls = world.settle()
    assert calls[-1] == ("/resume", 1)
    assert world.agents.active == uuid(1)
    assert refusal(world.agents.check_health, uuid(2)) == 404


def test_agents_are_checked_every_ten_seconds() -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    assert world.agents.wait(3000) == 7000
    world.now = 9_999
    assert world.settle() == []
    world.now = 10_000
    assert world.settle() == [("/id", 1)]
    assert world.agents.wait(world.now) == 10_000


def test_an_agent_that_is_another_one_is_dropped() -> None:
    world = World()
    call = world.agents.register(desc(1), 0)
    world.agents.answered(call, wire.SequenceStamp(uuid(2), 1), 0)
    assert refusal(world.agents.chosen, uuid(1)) == 400


def test_registrations_that_are_refused() -> None:
    world = World(versions=VersionRange(InformantVersion(2), InformantVersion(3)))
    assert refusal(world.agents.register, desc(1, 4, 4), 0) == 400
    assert refusal(world.agents.register, desc(1, 1, 1), 0) == 400
    assert refusal(world.agents.register, desc(1, 3, 2), 0) == 400
    for address in ("", "10.0.0.1", "host:1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x", "[::1]", "::1:²"):
        assert refusal(world.agents.register, desc(1, address=address), 0) == 400
    assert world.agents.register(desc(1, address="[::1]:80"), 0).host == "::1"
    assert refusal(world.agents.register, desc(1), 0) == 409
    assert world.register(desc(2)).version == InformantVersion(3)


def test_health_checks_and_leaving() -> None:
    world = World()
    world.register(desc(1, 1, 2))
    assert refusal(world.agents.check_health, uuid(1)) == 400
    assert refusal(world.agents.check_health, uuid(9)) == 404
    assert refusal(world.agents.unregister, desc(9)) == 404
    assert refusal(world.agents.unregister, desc(1, address="10.0.0.2:4000")) == 400
    assert not world.agents.unregister(desc(1))
    world.register(desc(2))
    world.agents.check_health(uuid(2))


def test_only_the_active_agent_is_heard() -> None:
    world = World()
    assert refusal(world.agents.heard, resources_from(1)) == 400
    world.register(desc(1))
    assert refusal(world.agents.heard, resources_from(1)) == 400
    world.settle()
    world.agents.heard(resources_from(1, 50))
    assert refusal(world.agents.heard, resources_from(2)) == 400
    world.register(desc(2))
    assert len(world.agents.calls(0)) == 1
    assert refusal(world.agents.heard, resources_from(1, 51)) == 400


def test_amounts_without_a_name_are_those_of_the_active_agent() -> None:
    world = World()
    world.register(desc(1, 1, 3))
    assert refusal(world.agents.heard, wire.ResourcesMessage(Resources(1, 1), None)) == 400
    world.settle()
    world.agents.heard(wire.ResourcesMessage(Resources(1, 1), None))


def test_messages_that_were_overtaken_are_counted_and_still_heard() -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    for sequence in (50, 49, 50, 51):
        world.agents.heard(resources_from(1, sequence))
    assert world.agents.overtaken == 2


def test_a_wish_for_more_reaches_each_agent_once_until_it_is_granted() -> None:
    world = World()
    world.agents.want(MEMORY)
    world.register(desc(1))
    (resume,) = world.agents.calls(0)
    world.answer(resume)
    (wish,) = world.agents.calls(0)
    assert (wish.endpoint, wish.timeout, wish.body) == (wire.TRY_UPSCALE, 400, wire.encode_try_upscale(MEMORY, uuid(1)))
    world.answer(wish)
    assert world.settle() == []
    world.agents.want(MEMORY)
    assert world.settle() == [("/try-upscale", 1)]
    world.register(desc(2))
    assert world.settle() == [("/suspend", 1), ("/resume", 2), ("/try-upscale", 2)]
    world.agents.granted()
    world.register(desc(3))
    assert world.settle() == [("/suspend", 2), ("/resume", 3)]


def test_an_agent_that_does_not_want_to_hear_a_wish_is_not_dropped_for_it() -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    world.silent = {uuid(1)}
    world.agents.want(MEMORY)
    assert world.settle() == [("/try-upscale", 1)]
    assert world.agents.active == uuid(1)


def test_agents_of_v1_0_are_not_asked_for_more() -> None:
    world = World()
    world.register(desc(1, 1, 1))
    world.agents.want(MEMORY)
    assert world.settle() == [("/resume", 1)]


def test_only_so_many_agents_are_known() -> None:
    world = World()
    world.register(desc(1))
    world.settle()
    for number in range(2, MOST_AGENTS + 9):
        world.agents.register(desc(number), 0)
    assert refusal(world.agents.check_health, uuid(2)) == 404
    world.agents.check_health(uuid(1))
    world.agents.check_health(uuid(MOST_AGENTS + 8))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_at_most_one_agent_runs_and_the_newest_that_answers_ends_up_active(seed: int) -> None:
    draw = random.Random(seed)
    agents = AgentRegistry(9100, versions=INFORMANT_VERSIONS)
    running: set[UUID] = set()  # what the agents themselves know
    under_way: list[AgentCall] = []
    registered: list[int] = []
    now = sequence = count = 0

    def finish(call: AgentCall, fails: bool) -> None:
        nonlocal sequence
        sequence += 1
        if call.endpoint == wire.RESUME and not fails:
            assert not running, "resumed while another runs"
            running.add(call.agent_id)
        if call.endpoint == wire.SUSPEND:
            assert call.agent_id in running or fails
            running.discard(call.agent_id)  # one that fails is dropped, and finds out when it asks
        if fails and call.endpoint != wire.TRY_UPSCALE:
            registered[:] = [number for number in registered if uuid(number) != call.agent_id]
            running.discard(call.agent_id)
        agents.answered(call, "silence" if fails else wire.SequenceStamp(call.agent_id, sequence), now)
        if call.agent_id.int in registered:
            agents.replied(call.agent_id)

    for _ in range(120):
        now += draw.choice([0, 100, 3000])
        match draw.randrange(5):
            case 0 if len(registered) < MOST_AGENTS:
                count += 1
                registered.append(count)
                under_way.append(agents.register(desc(count), now))
            case 1 if registered:
                number = draw.choice(registered)
                registered.remove(number)
                assert agents.unregister(desc(number)) in (True, False)
                running.discard(uuid(number))
            case 2:
                agents.want(MEMORY)
            case _:
                under_way += agents.calls(now)
                targets = [call.agent_id for call in under_way if call.agent_id.int in registered]
                assert len(targets) == len(set(targets)), "asked two things at a time"
                if under_way:
                    call = under_way.pop(draw.randrange(len(under_way)))
                    if call.agent_id.int in registered:
                        finish(call, draw.random() < 0.2)
        assert len(running) <= 1
        assert agents.active is None or agents.active in running
    while under_way or (under_way := agents.calls(now)):
        call = under_way.pop()
        if call.agent_id.int in registered:
            finish(call, False)
    assert agents.active == (uuid(max(registered)) if registered else None)
