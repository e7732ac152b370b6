"""The CPU time of a machine over HTTP: it reports what was set, with any factor."""

from __future__ import annotations

import asyncio
from pathlib import Path

from devalloc_machines.qemu.confinement import LEAST, CpuGroup, limit, limit_of
from devalloc_neon.cpu_time_server import Runner
from devalloc_node.errors import Denied, Failed
from devalloc_node.net.http import HttpRequest, HttpResponse, http_request

HOST = "127.0.0.1"


class CgroupShare:
    """The bound of a cgroup itself."""

    def __init__(self, folder: Path) -> None:
        (folder / "cpu.max").write_text("max 100000")
        self._group = CpuGroup(2, folder)

    def set(self, milli: int) -> None:
        if milli < LEAST:
            raise Denied("CpuAmountInvalid", f"a machine has at least {LEAST}m of CPU time here, not {milli}m")
        limit(self._group, milli)

    def get(self) -> int:
        if (milli := limit_of(self._group)) is None:
            raise Failed("CgroupUnavailable", "the cgroup has no bound of CPU time")
        return milli


def test_the_endpoints(tmp_path: Path) -> None:
    async def scenario() -> None:
        runner = Runner("vm1", CgroupShare(tmp_path))
        _, port = await runner.listen(HOST, 0)

        async def ask(method: str, path: str, body: bytes = b"") -> HttpResponse:
            return await http_request(HOST, port, HttpRequest(method, path, body), 5)

        assert (await ask("GET", "/cpu_current")).status == 500
        changed = await ask("POST", "/cpu_change", b'{"VCPUs":"250m"}')
        assert (changed.status, changed.body) == (200, b"")
        current = await ask("GET", "/cpu_current")
        assert (current.status, current.body) == (200, b'{"VCPUs":"250m"}')
        await asyncio.gather(*(ask("POST", "/cpu_change", b'{"vcpus":%d}' % n) for n in range(1, 6)))
        assert (await ask("GET", "/cpu_current")).body in [b'{"VCPUs":%d}' % n for n in range(1, 6)]
        before = (tmp_path / "cpu.max").read_text()
        for method, path, body in (
            ("GET", "/cpu_change", b"{}"),
            ("POST", "/cpu_current", b""),
            ("POST", "/cpu_change", b""),
            ("POST", "/cpu_change", b'{"VCPUs":"9m"}'),
            ("POST", "/cpu_change", b'{"VCPUs":-1}'),
        ):
            assert (await ask(method, path, body)).status == 400
        assert (await ask("GET", "/")).status == 404
        assert (tmp_path / "cpu.max").read_text() == before
        (tmp_path / "cpu.max").unlink()
        assert (await ask("POST", "/cpu_change", b'{"VCPUs":1}')).status == 500
        await runner.close()

    asyncio.run(scenario())
