"""The kubelet's DRAPlugin over a real socket: an entry for every claim, an error for bad ones only, and it lives on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import Prepared, PreparedDevice
from devalloc_node.pb import dra_v1_pb2
from devalloc_node.service.kubelet import MOST_CLAIMS, VERSIONS, KubeletPlugin
from devalloc_node.service.server import serve
from tests.support.kubelet_client import KubeletClient, kubelet_client
from tests.support.waiting import until

GOOD = ClaimRef("default", "gpu", "11111111-2222-3333-4444-555555555555")
ANSWERS = (dra_v1_pb2.NodeUnprepareResourcesResponse, dra_v1_pb2.NodePrepareResourcesResponse)
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"


@dataclass
class StoredClaims:
    """Claims that are known by UID. What is prepared is kept, so that tests see what was done how often."""

    prepared_claims: dict[str, Prepared] = field(default_factory=dict)
    prepared: list[str] = field(default_factory=list)
    unprepared: list[str] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    holds: dict[str, threading.Event] = field(default_factory=dict)
    busy: int = 0
    most_busy: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, ref: ClaimRef, deadline: Deadline) -> Prepared:
        self._enter(ref)
        try:
            if ref.uid not in self.prepared_claims:
                raise Denied("ClaimNotFound", f"there is no claim {ref}; create it first")
            if self.prepared_claims[ref.uid].ref != ref:
                raise Denied("ClaimUidMismatch", f"{ref} has another UID now")
            with self.lock:
                self.prepared.append(ref.uid)
            return self.prepared_claims[ref.uid]
        finally:
            self._leave()

    def unprepare(self, ref: ClaimRef, deadline: Deadline) -> None:
        self._enter(ref)
        with self.lock:
            self.unprepared.append(ref.uid)
        self._leave()

    def _enter(self, ref: ClaimRef) -> None:
        with self.lock:
            self.busy += 1
            self.most_busy = max(self.busy, self.most_busy)
        if hold := self.holds.get(ref.uid):
            hold.wait(60)
        if failure := self.failures.get(ref.uid):
            self._leave()
            raise failure

    def _leave(self) -> None:
        with self.lock:
            self.busy -= 1


def claim(number: int) -> ClaimRef:
    return ClaimRef("default", f"claim-{number}", f"uid-{number}")


def prepared(ref: ClaimRef, **changes: object) -> Prepared:
    device = PreparedDevice(("gpu",), "node-a-0000-41-00", "0000-41-00-0", "vfio")
    device = replace(device, **changes)
    return Prepared(ref, (device,), {device.key: (f"devalloc.io/device={ref.uid}-0",)})


@pytest.fixture
def claims() -> StoredClaims:
    return StoredClaims({GOOD.uid: prepared(GOOD)})


@pytest.fixture
def kubelet(claims: StoredClaims, tmp_path: Path) -> Iterator[KubeletClient]:
    plugin = KubeletPlugin(claims, call_seconds=20)
    server = serve(tmp_path / "dra.sock", [plugin.service(version) for version in VERSIONS])
    try:
        with kubelet_client(tmp_path / "dra.sock") as client:
            yield client
    finally:
        for hold in claims.holds.values():
            hold.set()
        server.stop(grace=0)
        plugin.stop()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_claim_is_prepared_and_unprepared(kubelet: KubeletClient, claims: StoredClaims, version: str) -> None:
    (answer,) = kubelet.prepare([GOOD], version).values()
    assert answer.error == ""
    (device,) = answer.devices
    assert list(device.request_names) == ["gpu"]
    assert (device.pool_name, device.device_name) == ("node-a-0000-41-00", "0000-41-00-0")
    assert list(device.cdi_device_ids) == [f"devalloc.io/device={GOOD.uid}-0"]
    assert kubelet.unprepare([GOOD], version)[GOOD.uid].error == ""
    assert (claims.prepared, claims.unprepared) == ([GOOD.uid], [GOOD.uid])


def test_a_share_has_its_id_where_the_version_knows_it(kubelet: KubeletClient, claims: StoredClaims) -> None:
    claims.prepared_claims[GOOD.uid] = prepared(GOOD, share="8a6e", requests=("gpu/large", "gpu", "mem"))
    for version in ("v1", "v1beta1"):
        (device,) = kubelet.prepare([GOOD], version)[GOOD.uid].devices
        assert list(device.request_names) == ["gpu", "mem"]
        assert list(device.cdi_device_ids) == [f"devalloc.io/device={GOOD.uid}-0"]
        assert getattr(device, "share_id", None) == ("8a6e" if version == "v1" else None)
    claims.prepared_claims[GOOD.uid] = prepared(GOOD)
    (device,) = kubelet.prepare([GOOD])[GOOD.uid].devices
    assert not device.HasField("share_id")


def test_preparing_again_answers_the_same(kubelet: KubeletClient) -> None:
    first = kubelet.prepare([GOOD])
    assert kubelet.prepare([GOOD]) == first


def test_one_bad_claim_costs_no_other(kubelet: KubeletClient, claims: StoredClaims) -> None:
    claims.prepared_claims["taken"] = prepared(ClaimRef("default", "other", "taken"))
    claims.failures["gone"] = Failed("DeviceGone", "0000:41:00.0 no longer exists; put the card back")
    claims.failures["bug"] = KeyError("secret of the implementation")
    bad = {
        ClaimRef("default", "new", "unknown"): "ClaimNotFound: there is no claim default/new; create it first",
        ClaimRef("default", "renamed", "taken"): "ClaimUidMismatch: default/renamed has another UID now",
        ClaimRef("default", "a", "gone"): "DeviceGone: 0000:41:00.0 no longer exists; put the card back",
        ClaimRef("default", "b", "bug"): "Internal: this is a bug in devalloc: KeyError",
    }
    answers = kubelet.prepare([*bad, GOOD])
    assert set(answers) == {ref.uid for ref in (*bad, GOOD)}
    for ref, text in bad.items():
        assert answers[ref.uid].error.startswith(text)
        assert list(answers[ref.uid].devices) == []
    assert answers[GOOD.uid].error == ""


HOSTILE = [
    "",
    ".",
    "..",
    "../../etc/passwd",
    "/etc",
    "a/b",
    "a\0b",
    "a\nb",
    "ä",
    "A_B",
    "a" * 300,
    "-a",
    "a:b",
    "\u202e",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_before_a_look_up(kubelet: KubeletClient, claims: StoredClaims, name: str) -> None:
    refs = [ClaimRef(name, "gpu", "u1"), ClaimRef("default", name, "u2"), ClaimRef("default", "gpu", name)]
    for call in (kubelet.prepare, kubelet.unprepare):
        answers = call([*refs, GOOD])
        assert set(answers) == {"u1", "u2", name, GOOD.uid}
        assert answers[GOOD.uid].error == ""
        for uid in ("u1", "u2", name):
            assert answers[uid].error.startswith("ClaimNameInvalid: the ")
            assert len(answers[uid].error) < 500
            assert answers[uid].error.isprintable()
    assert (claims.prepared, claims.unprepared) == ([GOOD.uid], [GOOD.uid])


def test_a_claim_that_is_named_twice_is_prepared_once(kubelet: KubeletClient, claims: StoredClaims) -> None:
    assert kubelet.prepare([GOOD, GOOD, GOOD])[GOOD.uid].error == ""
    assert claims.prepared == [GOOD.uid]


def test_two_claims_with_one_uid_are_both_refused(kubelet: KubeletClient, claims: StoredClaims) -> None:
    answers = kubelet.prepare([GOOD, replace(GOOD, name="other"), GOOD])
    assert answers[GOOD.uid].error.startswith("ClaimUidTwice: the call has two claims with this UID")
    assert claims.prepared == []


def test_a_call_works_on_a_few_claims_at_a_time(kubelet: KubeletClient, claims: StoredClaims) -> None:
    refs = [claim(number) for number in range(40)]
    claims.prepared_claims.update({ref.uid: prepared(ref) for ref in refs})
    gate = threading.Event()
    claims.holds.update({ref.uid: gate for ref in refs})

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(kubelet.prepare, refs)
        try:
            until(lambda: claims.busy == 8, "eight are worked on")
            assert kubelet.prepare([GOOD])[GOOD.uid].error == "", "another call is answered meanwhile"
            assert claims.busy == 8
        finally:
            gate.set()
        answers = calling.result()
    assert sorted(answers) == sorted(ref.uid for ref in refs)
    assert {answer.error for answer in answers.values()} == {""}
    assert sorted(claims.prepared) == sorted([GOOD.uid, *(ref.uid for ref in refs)])
    assert claims.most_busy == 9, "of the two calls together"


def test_claims_that_hang_have_an_answer_before_the_caller_gives_up(
    kubelet: KubeletClient, claims: StoredClaims
) -> None:
    hanging = [claim(number) for number in range(9)]
    claims.holds.update({ref.uid: threading.Event() for ref in hanging})
    claims.prepared_claims.update({ref.uid: prepared(ref) for ref in hanging})
    impatient = replace(kubelet, timeout=3.0)
    answers = impatient.prepare([GOOD, *hanging])
    assert answers[GOOD.uid].error == ""
    texts = sorted({answers[ref.uid].error.partition(":")[0] for ref in hanging})
    assert texts == ["Busy", "Unfinished"]
    for hold in claims.holds.values():
        hold.set()
    assert {answer.error for answer in kubelet.prepare(hanging).values()} == {""}


def test_a_message_of_10_mb_fails_its_call_and_nothing_else(kubelet: KubeletClient) -> None:
    huge = ClaimRef("default", "x" * 10_000_000, "u")
    with pytest.raises(grpc.RpcError) as error:
        kubelet.prepare([huge])
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    answers = kubelet.prepare([ClaimRef("default", "x" * 1_000_000, "u"), GOOD])
    assert len(answers["u"].error) < 500
    assert answers[GOOD.uid].error == ""


def test_a_call_with_too_many_claims_is_refused_as_a_whole(kubelet: KubeletClient, claims: StoredClaims) -> None:
    with pytest.raises(grpc.RpcError, match="request fewer at a time") as error:
        kubelet.prepare([claim(number) for number in range(MOST_CLAIMS + 1)])
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert len(kubelet.prepare([claim(number) for number in range(MOST_CLAIMS)])) == MOST_CLAIMS


def test_no_mutation_of_a_message_ends_the_service(kubelet: KubeletClient) -> None:
    """1,000 damaged requests. Each is answered, with an error of its own or for its claims; a good one then works."""
    draw = random.Random(20261121)
    outcomes = {"parsed": 0, "refused": 0}
    for number in range(1000):
        damaged = mutated(draw, request(draw))
        method = PREPARE if number % 2 else PREPARE.replace("NodePrepare", "NodeUnprepare")
        try:
            decoded = dra_v1_pb2.NodePrepareResourcesRequest.FromString(damaged)
        except DecodeError:
            with pytest.raises(grpc.RpcError) as error:
                kubelet.raw(method, damaged)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            outcomes["refused"] += 1
        else:
            entries = ANSWERS[number % 2].FromString(kubelet.raw(method, damaged)).claims
            assert set(entries) == {each.uid for each in decoded.claims}
            outcomes["parsed"] += 1
        assert kubelet.prepare([GOOD])[GOOD.uid].error == ""
    assert min(outcomes.values()) > 200, outcomes


def request(draw: random.Random) -> bytes:
    """A good claim and one of which one field is anything."""
    odd = {"namespace": "default", "name": "gpu", "uid": "u"}
    odd[draw.choice(list(odd))] = "".join(
        chr(draw.choice((0, 10, 46, 47, 97, 228, 0x202E))) for _ in range(draw.randrange(9))
    )
    good = dra_v1_pb2.Claim(namespace=GOOD.namespace, name=GOOD.name, uid=GOOD.uid)
    return dra_v1_pb2.NodePrepareResourcesRequest(claims=[good, dra_v1_pb2.Claim(**odd)]).SerializeToString()


def mutated(draw: random.Random, content: bytes) -> bytes:
    """Up to three random changes: a byte, a cut, an insertion, a repetition."""
    damaged = bytearray(content)
    for _ in range(draw.randint(0, 3)):
        place = draw.randrange(len(damaged) + 1)
        kind = draw.randrange(4)
        if kind == 0 and place < len(damaged):
            damaged[place] = draw.randrange(256)
        elif kind == 1:
            del damaged[place : place + draw.randint(1, 20)]
        elif kind == 2:
            damaged[place:place] = draw.randbytes(draw.randint(1, 20))
        else:
            damaged[place:place] = damaged[place : place + draw.randint(1, 60)]
    return bytes(damaged)
