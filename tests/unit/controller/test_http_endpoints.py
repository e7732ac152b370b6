"""What is shown over HTTP: to whom, and what else is answered."""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from devalloc.controller import http_endpoints
from devalloc.controller.authorization import ACCESS_REVIEWS, AUDIENCE, TOKEN_REVIEWS, ClusterAuthorizer
from devalloc.controller.certificate import self_signed
from devalloc.controller.http_endpoints import HttpSite, SitePage
from devalloc.net.http_server import HttpResponse
from tests.support.waiting import in_threads, until


class Cluster:
    """Who tokens are, and who may read what. Counts what it is asked."""

    def __init__(self, users: Mapping[str, str], rights: set[tuple[str, str]]) -> None:
        self.users, self.rights, self.reviews = users, rights, 0
        self.is_away = False
        self.audience = AUDIENCE

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.reviews += 1
        if self.is_away:
            raise OSError("no route to host")
        if path == TOKEN_REVIEWS:
            name = self.users.get(body["spec"]["token"])
            user = {"username": name, "groups": ["g"], "extra": {"e": ["1"]}}
            audiences = [each for each in body["spec"].get("audiences", ["api"]) if each == self.audience]
            if not name or not audiences:
                return {"status": {"error": "unknown"}}
            return {"status": {"authenticated": True, "user": user, "audiences": audiences}}
        assert path == ACCESS_REVIEWS
        spec = body["spec"]
        assert (spec["groups"], spec["extra"], spec["nonResourceAttributes"]["verb"]) == (["g"], {"e": ["1"]}, "get")
        return {"status": {"allowed": (spec["user"], spec["nonResourceAttributes"]["path"]) in self.rights}}


async def shown(request: web.BaseRequest) -> HttpResponse:
    return HttpResponse(200, b"shown " + request.path.encode(), headers={"X-Page": "1"})


PAGES = {"/healthz": SitePage(shown, is_open=True), "/metrics": SitePage(shown), "/page/": SitePage(shown)}


@contextmanager
def served(
    access: ClusterAuthorizer | None, tls: ssl.SSLContext | None = None, certificate: tuple[str, str] | None = None
) -> Iterator[str]:
    ready, at = threading.Event(), []

    def on_ready(address: tuple[str, int]) -> None:
        at.append(address)
        ready.set()

    made = HttpSite(PAGES, access, port=0, tls=tls, certificate=certificate, on_ready=on_ready)
    with in_threads(made.run):
        assert ready.wait(60)
        yield f"{'http' if tls is None else 'https'}://{at[0][0]}:{at[0][1]}"


def ask(url: str, token: str | None = None, method: str = "GET") -> tuple[int, bytes, Mapping[str, str]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers, method=method), timeout=60, context=context
        ) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_on_loopback_a_page_of_another_site_is_answered_nothing() -> None:
    """A browser that its DNS has led here would ask in that site's name, and let it read the answer."""
    with served(None) as url:
        for host, status in (("attacker.example", 421), ("localhost:1", 200), ("127.0.0.1", 200)):
            connection = http.client.HTTPConnection(url.partition("//")[2], timeout=60)
            connection.request("GET", "/page/", headers={"Host": host})
            assert connection.getresponse().status == status, host


def test_health_is_for_all_and_the_rest_for_those_who_may_read_it() -> None:
    cluster = Cluster({"good": "reader", "other": "stranger"}, {("reader", "/metrics"), ("reader", "/page/a")})
    with served(ClusterAuthorizer(cluster.post)) as url:
        assert ask(f"{url}/healthz")[:2] == (200, b"shown /healthz")
        status, _, headers = ask(f"{url}/metrics")
        assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="devalloc"')
        assert ask(f"{url}/metrics", "made up")[0] == 401
        assert ask(f"{url}/metrics", "other")[0] == 403
        status, body, headers = ask(f"{url}/metrics", "good")
        assert (status, body, headers["X-Page"]) == (200, b"shown /metrics", "1")
        assert headers["Cache-Control"] == "no-store"
        assert ask(f"{url}/page/a", "good")[1] == b"shown /page/a"
        assert ask(f"{url}/page/b", "good")[0] == 403, "a right is for a path"


def test_what_is_not_there_and_what_is_not_looking_is_refused() -> None:
    with served(None) as url:
        assert ask(f"{url}/page/x/y")[0] == 200
        assert ask(f"{url}/page")[0] == 404
        assert ask(f"{url}/metrics/")[0] == 404
        status, _, headers = ask(f"{url}/metrics", method="POST")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_no_caller_gets_in_until_the_api_server_answers_again() -> None:
    cluster = Cluster({"good": "reader"}, {("reader", "/metrics")})
    cluster.is_away = True
    with served(ClusterAuthorizer(cluster.post)) as url:
        assert ask(f"{url}/metrics", "good")[0] == 503
        cluster.is_away = False
        assert ask(f"{url}/metrics", "good")[0] == 200


def test_a_client_that_guesses_tokens_does_not_keep_the_api_server_busy() -> None:
    cluster = Cluster({"good": "reader"}, {("reader", "/metrics")})
    with served(ClusterAuthorizer(cluster.post)) as url:
        assert ask(f"{url}/metrics", "good")[0] == 200
        answers = [ask(f"{url}/metrics", f"made up {i}") for i in range(30)]
        assert {status for status, *_ in answers} == {401, 429}
        assert answers[-1][2]["Retry-After"] == "3"
        assert cluster.reviews < 2 + 30
        assert ask(f"{url}/metrics", "good")[0] == 200, "who is known is let in from there all the same"


def test_answers_are_kept_for_some_seconds() -> None:
    cluster = Cluster({"good": "reader"}, {("reader", "/metrics")})
    now = 0.0
    access = ClusterAuthorizer(cluster.post, clock=lambda: now)
    assert [access.status("good", "/metrics") for _ in range(5)] == [200] * 5
    assert cluster.reviews == 2
    cluster.rights.clear()
    now = 11.0
    assert access.status("good", "/metrics") == 403
    assert access.status("g" * 100_000, "/metrics") == 401
    assert cluster.reviews == 4


def test_a_token_must_be_for_devalloc_alone() -> None:
    """One that is for the API server is good for much else, and so nothing to show to others."""
    cluster = Cluster({"good": "reader"}, {("reader", "/metrics")})
    cluster.audience = "api"
    assert ClusterAuthorizer(cluster.post).status("good", "/metrics") == 401
    assert ClusterAuthorizer(cluster.post, audience="").status("good", "/metrics") == 200, (
        "as versions before 0.2.0 had it"
    )


def test_an_answer_that_names_no_audience_is_of_a_token_for_the_api_server() -> None:
    """So it is with authenticators that know of none (TokenReviewStatus.audiences)."""
    status = {"authenticated": True, "user": {"username": "reader"}, "allowed": True}
    post: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda path, body: {"status": status}  # noqa: E731
    assert ClusterAuthorizer(post).status("good", "/metrics") == 401
    assert ClusterAuthorizer(post, audience="").status("good", "/metrics") == 200


def test_a_certificate_that_comes_later_and_one_that_is_renewed_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a Secret that cert-manager writes after the pod has begun; a client with its authority verifies it."""
    monkeypatch.setattr(http_endpoints, "CERTIFICATE_CHECK_SECONDS", 0.05)
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    with served(None, self_signed(["127.0.0.1"]), (str(files[0]), str(files[1]))) as url:

        def verified(authority: str) -> bool:
            context = ssl.create_default_context(cadata=authority)
            try:
                with urllib.request.urlopen(f"{url}/healthz", timeout=60, context=context) as answer:
                    return bool(answer.status == 200)
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ssl.SSLError):
                    raise
                return False

        for kind in ("rsa", "ec"):
            certificate, key = written(kind)
            assert not verified(certificate)
            for path, text in ((files[1], key), (files[0], certificate)):
                (tmp_path / "new").write_text(text)
                (tmp_path / "new").replace(path)
            until(lambda certificate=certificate: verified(certificate), "the new certificate is served")  # type: ignore[misc]
        files[0].unlink()
        assert verified(certificate), "one that is gone counts on"


def written(kind: str) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key, as PEM."""
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"made for this test, {kind}")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.public_bytes(pem).decode(), private.decode()


@pytest.mark.parametrize("review", [{}, {"status": None}, {"status": {"authenticated": "yes"}}, {"status": []}])
def test_no_caller_gets_in_by_an_empty_review(review: dict[str, Any]) -> None:
    post: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda path, body: review  # noqa: E731
    assert ClusterAuthorizer(post).status("good", "/metrics") == 401


def test_a_certificate_of_its_own_where_there_is_no_other() -> None:
    with served(None, self_signed(["localhost", "127.0.0.1"])) as url:
        assert ask(f"{url}/healthz")[0] == 200
