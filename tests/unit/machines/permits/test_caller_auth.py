"""Who may ask for permits on a cluster, by what the API server says of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.machines.permits.caller_auth import (
    CACHE_SECONDS,
    NODE_NAME_KEY,
    PROXY,
    REJECTED_CACHE_SECONDS,
    Caller,
    CallerRejected,
    NodeTokenAuthenticator,
)
from devalloc.machines.permits.settings import Settings, UnsafeSettings
from tests.support.fake_kube import FakeClient, FakeKube

PLUGIN = "system:serviceaccount:devalloc-system:devalloc-node"
ADDRESS = "10.0.0.7"


class Clock:
    now = 100.0


def user(name: str = PLUGIN, *nodes: Any) -> dict[str, Any]:
    return {"username": name, "groups": ["g"], "extra": {NODE_NAME_KEY: [*nodes]} if nodes else {}}


@pytest.fixture
def client() -> FakeClient:
    kube = FakeKube()
    kube.users = {
        "good": user(PLUGIN, "node-a"),
        "unbound": user(),
        "twice": user(PLUGIN, "node-a", "node-b"),
        "odd": user(PLUGIN, 7),
        "proxy": user("proxy", "node-b"),
        "another": user("system:serviceaccount:default:default", "node-a"),
    }

    def allowed(spec: dict[str, Any]) -> bool:
        machines = {"group": "devalloc.io", "resource": "virtualmachines"}
        right = {
            PLUGIN: {**machines, "verb": "prepare"},
            "proxy": {**machines, "subresource": "permits", "verb": "proxy"},
        }
        return spec["resourceAttributes"] == right.get(spec["user"])

    kube.allowed = allowed
    return FakeClient(kube)


def review_count(client: FakeClient) -> int:
    return client.requests().get(("create", 200), 0)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("good", Caller("node-a")),
        ("proxy", PROXY),
        ("unbound", 403),
        ("twice", 403),
        ("odd", 403),
        ("another", 403),
        ("made up", 401),
        ("x" * 20_000, 401),
        ("", 401),
        (None, 401),
    ],
)
def test_a_token_of_a_nodes_plugin_is_for_that_node_and_the_proxys_for_runner_pods(
    client: FakeClient, token: str | None, expected: Caller | int
) -> None:
    caller = NodeTokenAuthenticator(client.create).caller_of(token, ADDRESS)
    assert (caller.status if isinstance(caller, CallerRejected) else caller) == expected


def test_a_good_token_is_believed_for_a_minute_and_a_bad_one_for_a_moment(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokenAuthenticator(client.create, clock=lambda: clock.now)
    for _ in range(3):
        assert tokens.caller_of("good", ADDRESS) == Caller("node-a")
        assert isinstance(tokens.caller_of("made up", ADDRESS), CallerRejected)
    assert review_count(client) == 2 + 1
    client.kube.users["made up"] = client.kube.users.pop("good")
    clock.now += REJECTED_CACHE_SECONDS
    assert tokens.caller_of("good", ADDRESS) == Caller("node-a")
    assert tokens.caller_of("made up", ADDRESS) == Caller("node-a")
    clock.now += CACHE_SECONDS
    assert isinstance(tokens.caller_of("good", ADDRESS), CallerRejected)


def test_a_client_that_guesses_tokens_is_limited_and_a_node_at_its_address_is_not(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokenAuthenticator(client.create, clock=lambda: clock.now)
    assert tokens.caller_of("good", ADDRESS) == Caller("node-a")
    before = review_count(client)
    callers = [tokens.caller_of(f"guess-{number}", ADDRESS) for number in range(20)]
    assert {each.status for each in callers if isinstance(each, CallerRejected)} == {401, 429}
    assert review_count(client) - before <= 5
    assert tokens.caller_of("good", ADDRESS) == Caller("node-a")


def test_no_caller_gets_in_while_the_api_server_is_silent(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokenAuthenticator(client.create, clock=lambda: clock.now)

    def away(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise OSError("no route to host")

    tokens._post = away
    caller = tokens.caller_of("good", ADDRESS)
    assert isinstance(caller, CallerRejected)
    assert caller.status == 503
    tokens._post = client.create
    assert tokens.caller_of("good", ADDRESS) == Caller("node-a"), "that is not remembered"


def test_tokens_of_nodes_are_asked_for_by_tls_only(client: FakeClient) -> None:
    with pytest.raises(UnsafeSettings, match="would be sent unencrypted"):
        Settings(host="0.0.0.0", callers=NodeTokenAuthenticator(client.create))
