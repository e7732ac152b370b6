"""The page without a browser: who gets it, what is in it, and that nothing in it is HTML of users."""

from __future__ import annotations

import gzip
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from devalloc.controller import authorization
from devalloc.controller.certificate import self_signed
from devalloc.controller.refusals import Funnel, Layer, Obstacle, Refusal
from devalloc.store import Event, Listing, Store, Unavailable
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import Overview, build_overview
from devalloc.usage.overview.cache import OverviewCache
from devalloc.usage.page import pages
from devalloc.usage.page.pages import _TEMPLATES, render_document, render_overview, render_problem
from devalloc.usage.page.view import MAX_NODES, MAX_ROWS, PageQuery
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.resource_manifests import counters, device, resource_claim, resource_quota, slice_of, warning
from tests.support.served_page import TOKEN, ask, served
from tests.support.virtual_time import Clock

Object = dict[str, Any]
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Read(HTMLParser):
    """What a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def totals(self) -> dict[str, str]:
        """The numbers at the top."""
        start = self.text.index("Nodes")
        return dict(zip(self.text[start : start + 20 : 2], self.text[start + 1 : start + 20 : 2], strict=True))


# -- what is in it ---------------------------------------------------------------------------------------------------


texts = st.text(st.sampled_from("<>&\"'`/=!-;:#x1 \n\u202e\x00"))


@given(texts, texts)
def test_whatever_text_there_is_stays_text(text: str, value: str) -> None:
    read = Read(render_problem(text, value))
    assert (read.tags, read.text) == ({"main", "h2", "p"}, [each for each in (text, value) if each])
    read = Read(render_document(Markup(), signed_in=False, query=PageQuery(text)))
    assert ("value", text) in read.attributes


def test_templates_escape_everything_and_have_all_that_they_name() -> None:
    folder = resources.files("devalloc.usage.page").joinpath("templates")
    sources = {path.name: path.read_text() for path in folder.iterdir()}
    assert not [name for name, source in sources.items() if re.search(r"\|\s*safe|autoescape", source)]
    for name in sources:
        _TEMPLATES.get_template(name.removesuffix(".html.j2"))
    with pytest.raises(UndefinedError):
        _TEMPLATES.get_template("problem").render(title="the text is missing")


TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "nav", "header", "main", "footer", "section"),
    *("h1", "h2", "a", "p", "form", "label", "input", "kbd", "button", "dl", "div", "dt", "dd", "ul", "li"),
    *("table", "thead", "tbody", "tr", "th", "td", "span", "svg", "rect", "text", "time", "small", "b"),
    *("h3", "ol", "code"),
}
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\' style="x" &lt;'


def test_names_and_messages_of_others_are_no_html() -> None:
    pool = gpu_pool("card", node=HOSTILE, model=HOSTILE)
    pool["metadata"]["annotations"] = {"devalloc.io/cordoned-node": HOSTILE}
    claim = gpu_claim("c", reason=HOSTILE, message=HOSTILE)
    claim["metadata"] |= {"name": HOSTILE, "creationTimestamp": HOSTILE}
    machine = {
        "apiVersion": "devalloc.io/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": HOSTILE, "namespace": HOSTILE},
        "spec": {"nodeName": HOSTILE, "cpu": {"min": HOSTILE}},
        "status": {"phase": HOSTILE, "reason": HOSTILE, "devices": [{"pool": HOSTILE, "device": HOSTILE}]},
    }
    waiting = resource_claim(HOSTILE, ours=True)
    theirs = [
        slice_of(HOSTILE, HOSTILE, [device(HOSTILE, {"key": HOSTILE, "value": HOSTILE, "effect": "NoExecute"})]),
        slice_of("taken", HOSTILE, [device("d", draws={HOSTILE: "1"})], sharedCounters=[counters(**{HOSTILE: "2"})]),
        resource_claim(f"has {HOSTILE}", "taken/d", namespace=HOSTILE, pods=(HOSTILE,)),
        waiting,
        warning(waiting, HOSTILE, HOSTILE),
        resource_quota(HOSTILE, HOSTILE, used={f"{HOSTILE}.deviceclass.resource.k8s.io/devices": HOSTILE}, gpu=HOSTILE),
    ]
    summary = build_overview([pool, claim, machine, gpu_class(), *theirs], [HOSTILE])
    opened = (f"node:{HOSTILE}", "card:card", f"card:slices:{HOSTILE}", "card:slices:taken")
    request = PageQuery(HOSTILE, (*opened, f"claim:default/{HOSTILE}"))
    layer = Layer("all", 2, HOSTILE, HOSTILE)
    refusal = Refusal(HOSTILE, HOSTILE, (Funnel(HOSTILE, (layer,)),), (Obstacle(HOSTILE, HOSTILE),), HOSTILE)
    refusals = {("default", HOSTILE): refusal}
    for one in (request, replace(request, search="")):
        body = render_overview(summary, one, HOSTILE, refusals=refusals)
        read = Read(render_document(body, signed_in=True, query=one))
        assert {"text", "ol", "code"} <= read.tags, "a card and a refusal are drawn"
        assert read.tags <= TAGS
        assert not [name for name, _ in read.attributes if name.startswith("on") or name == "style"]
        assert [value for name, value in read.attributes if name == "src"] == ["static/page.js"]
        assert all(
            (value or "").startswith(("?", "#", "static/", "./")) for name, value in read.attributes if name == "href"
        )
        assert len(read.ids) == len(set(read.ids))


def shown(summary: Overview, search: str = "", *opened: str) -> Read:
    return Read(render_overview(summary, PageQuery(search, opened)))


def test_it_shows_the_numbers_of_the_overview(store: SQLiteStore) -> None:
    fill(store, gpu_class(), gpu_pool("a", 3), gpu_pool("b", 2, "m"), gpu_claim("one", 2), gpu_claim("big", 9))
    done = machine_allocator(store).round()
    read = shown(build_overview(store.list().objects))
    assert read.totals() == {
        "Nodes": "2",
        "Cards": str(done.pools),
        "Devices": str(done.devices),
        "Available": str(done.available),
        "In use": "2",
        "Unavailable": "0",
        "Excluded": "0",
        "Claims allocated": str(done.allocated),
        "Claims pending": str(done.waiting),
        "Machines": "0",
    }
    assert "1 claim pending, 3 of 5 devices available" in read.text


def test_closed_sections_are_not_sent() -> None:
    summary = build_overview([gpu_pool("p", 2), gpu_class()])
    assert not any(each.startswith(("card:", "device:")) for each in shown(summary).ids)
    assert "card:p" in shown(summary, "", "node:n").ids
    assert {"device:p/d0", "device:p/d1"} <= set(shown(summary, "", "node:n", "card:p").ids)


def test_a_search_finds_nodes_by_what_is_on_them() -> None:
    claim = {**gpu_claim("train"), "status": {"allocations": [{"devicePoolName": "p7", "deviceName": "d1"}]}}
    summary = build_overview([gpu_class(), claim, *(gpu_pool(f"p{i}", node=f"n{i}") for i in range(20))])
    ids = shown(summary, "TRAIN").ids
    assert [each for each in ids if each.startswith("node:")] == ["node:n7"]
    assert "device:p7/d1" in ids, "what few nodes have is shown at once"
    assert "claim:default/train" in ids
    assert sum(each.startswith("node:") for each in shown(summary, "n1").ids) == 11
    assert "No node matches 'nowhere'." in shown(summary, "nowhere").text


def test_however_large_a_fleet_is_so_much_is_shown() -> None:
    nodes = [gpu_pool(f"p{i}", 1, f"n{i}") for i in range(MAX_NODES + 500)]
    claims = [gpu_claim(f"c{i}") for i in range(MAX_ROWS + 7)]
    read = shown(build_overview([gpu_class(), *nodes, *claims]))
    assert sum(each.startswith("node:") for each in read.ids) == MAX_NODES
    assert "500 more nodes: search to see them." in read.text
    assert "7 more claims: search to see them." in read.text


# -- who gets it -----------------------------------------------------------------------------------------------------


class Tokens:
    """Who may see the page; counts what it is asked."""

    def __init__(self, **status: int) -> None:
        self.statuses, self.reviews = status, 0

    def status(self, token: str | None, path: str) -> int:
        self.reviews += 1
        assert path == "/devalloc/"
        return self.statuses.get(token or "", 401)


def test_only_an_address_that_guesses_is_slowed_down() -> None:
    clock, tokens = Clock(), Tokens(good=200, barred=403, away=503)
    guard = authorization.RateLimitedAuthorizer(tokens, "/devalloc/", clock=clock)
    assert [guard.status("good", "1.2.3.4") for _ in range(20)] == [200] * 20
    assert [guard.status("barred", "1.2.3.4") for _ in range(20)] == [403] * 20
    assert [guard.status("away", "1.2.3.4") for _ in range(20)] == [503] * 20
    wrong = [guard.status(f"wrong{i}", "1.2.3.4") for i in range(8)]
    assert wrong == [401] * authorization.WRONG_TOKEN_BURST + [429] * 3
    reviews = tokens.reviews
    assert guard.status("wrong", "1.2.3.4") == 429
    assert tokens.reviews == reviews, "no more reviews are sent"
    assert guard.status("good", "1.2.3.4") == 200, "who is known is let in from there all the same"
    assert guard.status("wrong", "5.6.7.8") == 401
    clock.now += authorization.REFILL_SECONDS
    assert [guard.status(f"other{i}", "1.2.3.4") for i in range(2)] == [401, 429]


def test_a_token_that_is_withdrawn_is_good_no_more() -> None:
    tokens = Tokens(good=200)
    guard = authorization.RateLimitedAuthorizer(tokens, "/devalloc/", clock=Clock())
    assert guard.status("good", "a") == 200
    tokens.statuses.clear()
    assert guard.status("good", "a") == 401
    assert guard.status(None, "a") == guard.status("", "a") == 401


def test_of_addresses_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "MAX_ADDRESSES", 10)
    guard = authorization.RateLimitedAuthorizer(Tokens(), "/devalloc/", clock=Clock())
    for number in range(100):
        guard.status("wrong", f"10.0.0.{number}")
    assert len(guard._left) == 10


@pytest.mark.parametrize(
    ("form", "token"),
    [
        (b"token=abc.d-e_f%2B%2F~%3D", "abc.d-e_f+/~="),
        (b"token=%20abc%0A", "abc"),
        (b"token=a;b", None),
        (b"token=a%22b", None),
        (b"token=a%0D%0ASet-Cookie:x", None),
        (b"token=" + b"a" * 4000, None),
        (b"token=", None),
        (b"other=abc", None),
        (b"\xff\xfe", None),
        (b"&".join([b"token=a"] * 9), None),
    ],
)
def test_tokens_of_forms(form: bytes, token: str | None) -> None:
    assert pages.token_of_form(form) == token


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"Host": "h:1", "Origin": "https://h:1", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Host": "h:1", "Origin": "https://h:1", "Sec-Fetch-Site": "same-site"}, False),
        ({"Host": "h:1", "Origin": "https://evil", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Host": "h:1", "Origin": "https://h:1"}, True),
        ({"Host": "h:1", "Origin": "https://evil"}, False),
        ({"Host": "h:1", "Origin": "null"}, False),
        ({"Host": "h:1"}, True),  # no browser
    ],
)
def test_forms_are_taken_from_this_page_only(headers: dict[str, str], is_own: bool) -> None:
    assert pages.is_same_origin(make_mocked_request("POST", "/devalloc/login", headers)) == is_own


# -- what is answered ------------------------------------------------------------------------------------------------


def test_the_page_shows_nothing_without_a_token(store: SQLiteStore) -> None:
    fill(store, gpu_pool("secret-pool"))
    with served(store) as url:
        for path, wrong in (("", {}), ("?open=node:n", {}), ("", {"Cookie": "devalloc-1=x"})):
            status, headers, body = ask(url, path, **wrong)
            assert (status, b"secret" in body, b'type="password"' in body) == (200, False, True)
            assert "no-store" in headers["Cache-Control"]
        assert ask(url, "view")[0] == 401
        assert ask(url, "", Authorization="Bearer wrong")[0] == 401
        assert ask(url, "", Authorization=f"Basic {TOKEN}")[0] == 200, "the form"
        status, _, body = ask(url, "view", **BEARER)
        assert (status, b"secret-pool" in ask(url, "?open=node:n", **BEARER)[2]) == (200, True)


def test_signing_in_and_out(store: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with served(store) as url:
        assert ask(url, "login", method="POST", body="token=wrong")[0] == 401
        status, headers, _ = ask(url, "login", method="POST", body=f"token={TOKEN}")
        cookie, *flags = headers["Set-Cookie"].split("; ")
        assert (status, headers["Location"]) == (303, "./")
        assert {flag.lower() for flag in flags} == {"httponly", "samesite=strict", "path=/"}
        assert (
            b'role="treegrid"' in ask(url, "", Cookie=cookie)[2] or b"There is no node." in ask(url, Cookie=cookie)[2]
        )
        status, headers, _ = ask(url, "logout", method="POST", body="", Cookie=cookie)
        assert (status, "Max-Age=0" in headers["Set-Cookie"]) == (303, True)
        stranger = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        for path in ("login", "logout"):
            status, headers, _ = ask(url, path, method="POST", body=f"token={TOKEN}", **stranger)
            assert (status, "Set-Cookie" in headers) == (403, False)
    assert TOKEN not in caplog.text


def test_with_tls_the_cookie_goes_nowhere_else(store: SQLiteStore) -> None:
    with served(store, tls=self_signed(["127.0.0.1"])) as url:
        status, headers, _ = ask(url, "login", method="POST", body=f"token={TOKEN}")
        cookie, *flags = headers["Set-Cookie"].split("; ")
        assert (status, cookie.startswith("__Host-devalloc="), "Secure" in flags) == (303, True, True)
        assert ask(url, "view", Cookie=cookie)[0] == 200


def test_a_refused_user_reads_what_is_missing(store: SQLiteStore) -> None:
    with served(store, Tokens(barred=403, away=503)) as url:
        status, _, body = ask(url, Authorization="Bearer barred")
        assert (status, b"no permission to see this page" in body) == (403, True)
        status, _, body = ask(url, Authorization="Bearer away")
        assert (status, b"cannot be checked now" in body) == (503, True)
        answers = [
            ask(url, "login", method="POST", body=f"token=wrong{i}") for i in range(authorization.WRONG_TOKEN_BURST + 1)
        ]
        assert [answer[0] for answer in answers] == [401] * authorization.WRONG_TOKEN_BURST + [429]
        assert answers[-1][1]["Retry-After"] == "3"


def test_unchanged_views_and_files_are_not_sent_again(store: SQLiteStore) -> None:
    fill(store, gpu_class(), gpu_pool())
    with served(store) as url:
        _, headers, _ = ask(url, "view", **BEARER)
        mark = {"If_None_Match": headers["ETag"]}
        assert ask(url, "view", **BEARER, **mark)[::2] == (304, b"")
        assert ask(url, "view?q=x", **BEARER, **mark)[0] == 200
        assert ask(url, "", **BEARER, **mark)[0] == 200
        assert ask(url, "view", **mark)[0] == 401
        _, headers, packed = ask(url, "view", **BEARER, Accept_Encoding="gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == ask(url, "view", **BEARER)[2]
        _, headers, _ = ask(url, "static/page.js")
        assert ask(url, "static/page.js", If_None_Match=headers["ETag"])[0] == 304


def test_each_answer_has_its_policy(store: SQLiteStore) -> None:
    with served(store) as url:
        for path in ("", "view", "login", "static/page.css", "static/page.py", "static/../pages.py", "nothing"):
            status, headers, _ = ask(url, path, **BEARER)
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert status == (404 if path.endswith(("py", "nothing")) else 200)
        assert ask(url, "view", method="POST", body="", **BEARER)[0] == 405
        assert ask(url, "", method="DELETE", **BEARER)[0] == 405
        assert ask(url, "", method="HEAD", **BEARER)[::2] == (200, b"")
        root = url.removesuffix("devalloc/")
        assert ask(root)[1]["Location"] == ask(root, "devalloc")[1]["Location"] == "devalloc/"
        assert ask(root, "elsewhere")[0] == 404


def test_slow_forms_keep_no_other_user_out(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are connections."""
    monkeypatch.setattr(pages, "FORM_SECONDS", 60.0)
    with served(store) as url, ExitStack() as opened:
        place = urlsplit(url)
        for _ in range(300):
            line = opened.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
            with suppress(OSError):
                line.send(b"POST /devalloc/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\ntoken=")
        assert ask(url, "view", **BEARER)[0] == 200
        assert ask(url.removesuffix("devalloc/"))[0] == 303
        assert ask(url, "login", method="POST", body=f"token={TOKEN}")[0] == 429


def test_health_is_answered_while_reviews_of_tokens_hang(store: SQLiteStore) -> None:
    """Health, that is: the API server hangs, and all who ask for the page wait for it."""
    event = threading.Event()

    class Hanging:
        def status(self, token: str | None, path: str) -> int:
            assert event.wait(60)
            return 200

    with served(store, Hanging()) as url, ExitStack() as opened:
        opened.callback(event.set)
        place = urlsplit(url)
        for _ in range(300):
            line = opened.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
            with suppress(OSError):
                line.send(
                    f"GET /devalloc/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
                )
        assert ask(url.removesuffix("devalloc/"))[0] == 303
        assert ask(url, "view", **BEARER)[0] == 503


class Sometimes:
    """A store that cannot always be read."""

    def __init__(self, store: Store) -> None:
        self.store, self.is_away, self.lists = store, False, 0

    def list(self, kinds: Any = None, namespace: str | None = None) -> Listing:
        self.lists += 1
        if self.is_away:
            raise Unavailable("the API server does not answer")
        return self.store.list(kinds, namespace)

    def identity(self) -> str:
        return self.store.identity()

    def watch(self, kinds: Any, since: str, *, timeout: float) -> Iterator[Event]:
        if self.is_away:
            raise Unavailable("the API server does not answer")
        return self.store.watch(kinds, since, timeout=timeout)


def test_a_store_is_read_for_a_view_and_at_most_every_few_seconds(store: SQLiteStore) -> None:
    clock, sometimes = Clock(), Sometimes(store)
    sight = OverviewCache(sometimes, clock=clock)  # type: ignore[arg-type]  all that it needs
    first = sight.latest()
    fill(store, gpu_pool())
    assert (sight.latest(), sometimes.lists) == (first, 1)
    clock.now += 2
    second = sight.latest()
    assert (second.overview.cards, second.version != first.version) == (1, True)
    fill(store, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}})
    clock.now += 2
    assert sight.latest().version == second.version, "there is nothing else to see"
    assert sometimes.lists == 1, "after the first time, only what changed is read"
    sometimes.is_away = True
    clock.now += 2
    third = sight.latest()
    assert (third.overview, third.trouble) == (second.overview, "the API server does not answer")
    assert third.version != second.version
    sometimes.is_away = False
    clock.now += 2
    assert sight.latest().trouble == ""


def test_a_store_that_a_backup_replaced_is_read_anew(store: SQLiteStore, tmp_path: Path) -> None:
    """Its places go on from other ones, and may be ahead of those that were read."""
    clock, restored = Clock(), Sometimes(store)
    fill(store, gpu_pool("now"))
    sight = OverviewCache(restored, clock=clock)  # type: ignore[arg-type]  all that it needs
    sight.latest()
    with closing(SQLiteStore(tmp_path / "other.db")) as other:
        for number in range(4):
            fill(other, gpu_pool(f"then-{number}"))
        restored.store = other
        clock.now += 2
        names = {card.name for node in sight.latest().overview.nodes for card in node.cards}
    assert names == {f"then-{number}" for number in range(4)}


def test_a_store_that_was_never_read_is_answered_503(store: SQLiteStore) -> None:
    sometimes = Sometimes(store)
    sometimes.is_away = True
    with served(sometimes) as url:  # type: ignore[arg-type]
        status, _, body = ask(url, **BEARER)
        assert (status, b"the API server does not answer" in body) == (503, True)


def test_claims_without_a_controller_are_a_warning(store: SQLiteStore) -> None:
    remarks = ["Claims may not be answered: <why>"]
    with served(store, remarks=lambda: remarks[-1]) as url:
        body = ask(url, **BEARER)[2].decode()
        assert re.search(r'<p [^>]*class="warning"[^>]*>Claims may not be answered: &lt;why&gt;</p>', body)
    remarks.append("")
    with served(store, remarks=lambda: remarks[-1]) as url:
        assert "may not be answered" not in ask(url, **BEARER)[2].decode()


def test_a_device_with_two_owners_is_a_red_alarm() -> None:
    held = {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}
    claims = [gpu_claim(name) | {"status": held} for name in ("a", "b")]
    html = str(render_overview(build_overview([gpu_pool(), gpu_class(), *claims]), PageQuery()))
    alarm = "device p/d0 has several owners: DeviceClaims default/a and default/b"
    assert 'id="alarms" role="alert"' in html
    assert alarm in html.partition('<ul class="warning">')[2].partition("</ul>")[0]
    assert "alarms" not in str(render_overview(build_overview([gpu_pool(), gpu_class(), claims[0]]), PageQuery()))
