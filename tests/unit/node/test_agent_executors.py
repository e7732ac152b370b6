"""Threads for machines: each has its turn, a change whose caller gave up goes on, and slow guests hold up no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from devalloc_machines.agent.actuator import MachineExecutors


@pytest.fixture
def executors() -> Iterator[MachineExecutors]:
    made = MachineExecutors(4)
    yield made
    made.close()


class Gate:
    """Work that waits until it may go on."""

    def __init__(self, result: object = None) -> None:
        self.began, self.open, self._result = threading.Event(), threading.Event(), result

    def __call__(self) -> object:
        self.began.set()
        assert self.open.wait(60)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


async def began(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.began.wait, 30)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_what_is_done_comes_back_and_what_fails_is_raised(executors: MachineExecutors) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        assert await executors.look("a", lambda: 1) == 1
        assert await executors.change("a", lambda: 2, slow=False) == 2
        with pytest.raises(ZeroDivisionError):
            await executors.change("a", fails, slow=True)
        assert await executors.look("a", lambda: 3) == 3

    asyncio.run(main())


@pytest.mark.parametrize("result", [None, ZeroDivisionError("it failed")])
def test_the_next_change_waits_for_one_whose_caller_gave_up(executors: MachineExecutors, result: object) -> None:
    gate, order = Gate(result), list[str]()

    async def main() -> None:
        first = asyncio.create_task(executors.change("a", gate, slow=False))
        await began(gate)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        after = [
            asyncio.create_task(executors.change("a", lambda: order.append("change"), slow=False)),
            asyncio.create_task(executors.look("a", lambda: order.append("look"))),
        ]
        assert await executors.look("b", lambda: "at once") == "at once", "others do not wait"
        await settled()
        assert order == []
        gate.open.set()
        await asyncio.gather(*after)
        assert sorted(order) == ["change", "look"]

    asyncio.run(main())


def test_a_change_that_is_cancelled_before_it_began_is_never_made(executors: MachineExecutors) -> None:
    gates, made = [Gate() for _ in range(4)], list[str]()

    async def main() -> None:
        busy = [asyncio.create_task(executors.change(f"busy-{i}", gate, slow=False)) for i, gate in enumerate(gates)]
        for gate in gates:
            await began(gate)
        waits = asyncio.create_task(executors.change("a", lambda: made.append("late"), slow=False))
        await settled()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        for gate in gates:
            gate.open.set()
        await asyncio.gather(*busy)
        await executors.change("a", lambda: made.append("next"), slow=False)
        assert made == ["next"]

    asyncio.run(main())


def test_slow_guests_hold_up_neither_looks_nor_other_machines(executors: MachineExecutors) -> None:
    gates = [Gate() for _ in range(20)]

    async def main() -> None:
        slow = [asyncio.create_task(executors.change(f"slow-{i}", gate, slow=True)) for i, gate in enumerate(gates)]
        await began(gates[0])
        async with asyncio.timeout(60):
            await asyncio.gather(*(executors.change(f"m-{i}", int, slow=False) for i in range(50)))
            await asyncio.gather(*(executors.look(f"m-{i}", int) for i in range(50)))
        for gate in gates:
            gate.open.set()
        await asyncio.gather(*slow)

    asyncio.run(main())


def test_nothing_is_kept_of_machines_that_were_changed(executors: MachineExecutors) -> None:
    async def main() -> None:
        await asyncio.gather(*(executors.change(f"m-{i}", int, slow=False) for i in range(100)))
        await settled()
        assert vars(executors)["_under_way"] == {}

    asyncio.run(main())
