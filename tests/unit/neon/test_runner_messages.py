"""What a controller says to what runs a machine."""

from __future__ import annotations

import pytest

from devalloc.scaling.peer_json import RequestError, Unreadable
from devalloc_neon import runner_messages as runner


def test_cpu_time_is_an_amount_of_cpu() -> None:
    assert runner.encode_cpu(250) == b'{"VCPUs":"250m"}'
    assert runner.encode_cpu(2000) == b'{"VCPUs":2}'
    assert [runner.decode_cpu(body) for body in (b'{"VCPUs":"250m"}', b'{"vcpus":0.25}')] == [250, 250]


@pytest.mark.parametrize("body", [b"", b"{}", b"2", b'{"VCPUs":0}', b'{"VCPUs":"-1"}', b'{"VCPUs":"x"}', b'{"VCPUs":2'])
def test_no_cpu_time_is_not_an_amount(body: bytes) -> None:
    with pytest.raises(Unreadable):
        runner.decode_cpu(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/cpu_change", 400), ("POST", "/cpu_current", 400), ("GET", "/cpu", 404), ("GET", "/", 404)],
)
def test_wrong_methods_are_400_here(method: str, path: str, status: int) -> None:
    with pytest.raises(RequestError) as refused:
        runner.check_endpoint(method, path)
    assert refused.value.status == status
    runner.check_endpoint("POST", "/cpu_change")
    runner.check_endpoint("GET", "/cpu_current")
