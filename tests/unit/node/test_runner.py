"""The CPU time of a machine over HTTP: what is set is what is told, with any factor."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from pathlib import Path

import pytest

from devalloc_node.agent.runner import CgroupShare, Runner
from devalloc_node.errors import Denied, Failed
from devalloc_node.machine.cgroup import CpuGroup
from devalloc_node.plainhttp import Request, Response, call

HOST = "127.0.0.1"


def group(folder: Path, version: int) -> CpuGroup:
    """A folder with the files of a cgroup without a bound."""
    if version == 2:
        (folder / "cpu.max").write_text("max 100000")
        return CpuGroup(2, folder)
    (folder / "cpu.cfs_period_us").write_text("100000")
    (folder / "cpu.cfs_quota_us").write_text("-1")
    return CpuGroup(1, folder)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("factor", [Fraction(1), Fraction(4), Fraction(3, 2), Fraction(1, 2), Fraction(7, 10)])
def test_what_is_set_is_what_is_told(tmp_path: Path, version: int, factor: Fraction) -> None:
    share = CgroupShare(group(tmp_path, version), factor)
    with pytest.raises(Failed, match="has no bound"):
        share.get()
    wrong = []
    for milli in (50, 250, 251, 333, 999, 1000, 1250, 512000):
        share.set(milli)
        after_restart = CgroupShare(CpuGroup(version, tmp_path), factor).get()  # type: ignore[arg-type]
        if share.get() != milli or (factor >= 1 and after_restart != milli) or abs(after_restart - milli) > 1:
            wrong.append((milli, share.get(), after_restart))
    assert wrong == []
    file = tmp_path / ("cpu.max" if version == 2 else "cpu.cfs_quota_us")
    share.set(1000)
    assert file.read_text().split()[0] == str(100 * round(1000 * factor))
    file.write_text("50000 100000" if version == 2 else "50000")
    assert share.get() == round(500 / factor), "somebody else has changed it"


def test_less_than_a_kernel_can_bound_is_denied(tmp_path: Path) -> None:
    share = CgroupShare(group(tmp_path, 2), Fraction(1, 2))
    with pytest.raises(Denied, match="at least 20m of CPU time here, not 18m"):
        share.set(18)
    share.set(20)
    with pytest.raises(ValueError, match="factor"):
        CgroupShare(group(tmp_path, 2), Fraction(0))


def test_the_endpoints(tmp_path: Path) -> None:
    async def scenario() -> None:
        runner = Runner("vm1", CgroupShare(group(tmp_path, 2)))
        _, port = await runner.listen(HOST, 0)

        async def ask(method: str, path: str, body: bytes = b"") -> Response:
            return await call(HOST, port, Request(method, path, body), 5)

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
