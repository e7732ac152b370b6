"""Messages between a controller and what runs a machine's process (the runner): the CPU time that it has.

``POST /cpu_change`` sets it and is answered with an empty 200; ``GET /cpu_current`` tells it. A wrong method and a bad
body are 400, what could not be done is 500. Both bodies are ``{"VCPUs": 1}`` or ``{"VCPUs": "250m"}``.
"""

from __future__ import annotations

from devalloc.scaling.peer_json import JsonFields, RequestError, Unreadable, cpu_to_json, decode_body, encode_message
from devalloc.scaling.versions import Version

PORT = 25183
MAX_BODY = 1024
CHANGE_PATH = "/cpu_change"
CURRENT_PATH = "/cpu_current"
_METHODS = {CHANGE_PATH: "POST", CURRENT_PATH: "GET"}


class RunnerVersion(Version):
    """Of the protocol with what runs a machine's process. 0 is from before there were versions."""

    names = ("v1",)

    @property
    def has_fractional_cpu(self) -> bool:
        """Parts of a CPU are given by a cgroup."""
        return self >= 1


VERSION = RunnerVersion(1)
"""The only one. The pod has it in the label ``vm.neon.tech/runner-version``."""


def check_endpoint(method: str, path: str) -> None:
    """Whether there is such an endpoint. Raises RequestError."""
    if path not in _METHODS:
        raise RequestError(404, "there is no such endpoint")
    if method != _METHODS[path]:
        raise RequestError(400, f"{path} must be {_METHODS[path]}")


def encode_cpu(milli: int) -> bytes:
    """``milli``: thousandths of a CPU."""
    return encode_message({"VCPUs": cpu_to_json(milli)})


def decode_cpu(body: bytes) -> int:
    """Thousandths of a CPU, more than none. Raises Unreadable."""
    fields = JsonFields(decode_body(body))
    milli = fields.cpu("VCPUs")
    if milli == 0:
        raise Unreadable("VCPUs must be more than zero")
    return milli
