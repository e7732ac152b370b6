"""Must show: of machines that are started at once on a full host, exactly those run that it has room for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.errors import Denied
from tests.support.capacity_fakes import host
from tests.support.deadlines import soon
from tests.support.images import Image
from tests.support.machines import plugin, virtual_machine

ROOM = host(cpu=8, memory="1536Mi", ratios={"cpu": "1"})
"""For three machines of 512 MiB."""


def test_of_12_starts_at_once_3_run_and_the_others_say_why_and_leave_nothing(
    settings: MachineConfig, micro: Image
) -> None:
    refused: dict[str, Denied] = {}
    with plugin(settings, host=ROOM) as machines, plugin(settings, host=ROOM) as other:

        def start(number: int) -> None:
            # Two instances of a plugin, as in a rolling update.
            try:
                (machines, other)[number % 2].start(virtual_machine(f"m{number}", micro), soon())
            except Denied as error:
                refused[f"default/m{number}"] = error

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(start, range(12)))
        living = sorted(record.spec.key for record, _ in machines.living())
        assert (len(living), len(refused), {*living} & {*refused}) == (3, 9, set())
        assert {(error.code, error.retryable) for error in refused.values()} == {("HostFull", True)}
        why = next(iter(refused.values())).message
        assert "insufficient memory: requested 512.0 MB, but only 0 B available (currently allocated: 1.5 GB" in why
        assert [machine.key for machine in machines.list()] == living, "who is refused is not kept"
        assert len(list(settings.state.glob("*.life"))) == 3

        machines.start(virtual_machine(living[0].removeprefix("default/"), micro), soon())  # it has its room
        machines.stop(living[0], 0, True, soon())
        late = virtual_machine(min(refused).removeprefix("default/"), micro)
        other.start(late, soon())
        with pytest.raises(Denied, match="does not fit on this host now"):
            machines.start(virtual_machine(living[0].removeprefix("default/"), micro), soon())
        other.stop("/".join(late.key), 0, True, soon())
        with pytest.raises(Denied, match=r"requested 2\.0 GB"):
            machines.start(virtual_machine("greedy", micro, reserveMax=True), soon())
