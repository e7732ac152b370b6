"""Who may ask for permits on a cluster, by what the API server says of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.controller.permits.callers import BAD_SECONDS, KEPT_SECONDS, NODE, NodeTokens, NotKnown
from devalloc.controller.permits.settings import NotSafe, Settings
from tests.support.fake_kube import FakeClient, FakeKube

PLUGIN = "system:serviceaccount:devalloc-system:devalloc-node"
ADDRESS = "10.0.0.7"


class Clock:
    now = 100.0


def user(name: str = PLUGIN, *nodes: Any) -> dict[str, Any]:
    return {"username": name, "groups": ["g"], "extra": {NODE: [*nodes]} if nodes else {}}


@pytest.fixture
def client() -> FakeClient:
    kube = FakeKube()
    kube.users = {
        "good": user(PLUGIN, "node-a"),
        "unbound": user(),
        "twice": user(PLUGIN, "node-a", "node-b"),
        "odd": user(PLUGIN, 7),
        "another": user("system:serviceaccount:default:default", "node-a"),
    }

    def allowed(spec: dict[str, Any]) -> bool:
        asked = {"group": "devalloc.io", "resource": "virtualmachines", "verb": "prepare"}
        return spec["resourceAttributes"] == asked and spec["user"] == PLUGIN

    kube.allowed = allowed
    return FakeClient(kube)


def asked(client: FakeClient) -> int:
    return client.requests().get(("create", 200), 0)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("good", "node-a"),
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
def test_a_token_of_a_nodes_plugin_is_for_that_node(client: FakeClient, token: str | None, expected: str | int) -> None:
    found = NodeTokens(client.create).node_of(token, ADDRESS)
    assert (found.status if isinstance(found, NotKnown) else found) == expected


def test_a_good_token_is_believed_for_a_minute_and_a_bad_one_for_a_moment(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokens(client.create, clock=lambda: clock.now)
    for _ in range(3):
        assert tokens.node_of("good", ADDRESS) == "node-a"
        assert isinstance(tokens.node_of("made up", ADDRESS), NotKnown)
    assert asked(client) == 2 + 1
    client.kube.users["made up"] = client.kube.users.pop("good")
    clock.now += BAD_SECONDS
    assert tokens.node_of("good", ADDRESS) == "node-a"
    assert tokens.node_of("made up", ADDRESS) == "node-a"
    clock.now += KEPT_SECONDS
    assert isinstance(tokens.node_of("good", ADDRESS), NotKnown)


def test_who_guesses_is_left_waiting_and_a_node_beside_him_is_not(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokens(client.create, clock=lambda: clock.now)
    assert tokens.node_of("good", ADDRESS) == "node-a"
    before = asked(client)
    found = [tokens.node_of(f"guess-{number}", ADDRESS) for number in range(20)]
    assert {each.status for each in found if isinstance(each, NotKnown)} == {401, 429}
    assert asked(client) - before <= 5
    assert tokens.node_of("good", ADDRESS) == "node-a"


def test_an_api_server_that_does_not_answer_lets_nobody_in(client: FakeClient) -> None:
    clock = Clock()
    tokens = NodeTokens(client.create, clock=lambda: clock.now)

    def away(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise OSError("no route to host")

    tokens._post = away
    found = tokens.node_of("good", ADDRESS)
    assert isinstance(found, NotKnown)
    assert found.status == 503
    tokens._post = client.create
    assert tokens.node_of("good", ADDRESS) == "node-a", "that is not remembered"


def test_tokens_of_nodes_are_asked_for_by_tls_only(client: FakeClient) -> None:
    with pytest.raises(NotSafe, match="could be read on their way"):
        Settings(host="0.0.0.0", callers=NodeTokens(client.create))
