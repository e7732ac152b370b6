"""Messages between a controller and what runs a machine's process (the runner): the CPU time that it has.

``POST /cpu_change`` sets it and is answered with an empty 200; ``GET /cpu_current`` tells it. A wrong method and a bad
body are 400, what could not be done is 500. Both bodies are ``{"VCPUs": 1}`` or ``{"VCPUs": "250m"}``.
"""

from __future__ import annotations

from devalloc.scaling.messages.refused import Refused
from devalloc.scaling.peerjson import Fields, Unreadable, encode, first_value
from devalloc.scaling.scalars import cpu_to_json
from devalloc.scaling.versions import RunnerVersion

PORT = 25183
MAX_BODY = 1024
CHANGE = "/cpu_change"
CURRENT = "/cpu_current"
_METHODS = {CHANGE: "POST", CURRENT: "GET"}
VERSION = RunnerVersion(1)
"""The only one. It stands in a label of the pod: ``devalloc.scaling.vminfo.LABEL_RUNNER_VERSION``."""


def check(method: str, path: str) -> None:
    """Whether there is such an endpoint. Raises Refused."""
    if path not in _METHODS:
        raise Refused(404, "there is no such endpoint")
    if method != _METHODS[path]:
        raise Refused(400, f"{path} must be {_METHODS[path]}")


def encode_cpu(milli: int) -> bytes:
    """``milli``: thousandths of a CPU."""
    return encode({"VCPUs": cpu_to_json(milli)})


def decode_cpu(body: bytes) -> int:
    """Thousandths of a CPU, more than none. Raises Unreadable."""
    fields = Fields(first_value(body))
    milli = fields.cpu("VCPUs")
    if milli == 0:
        raise Unreadable("VCPUs must be more than zero")
    return milli
