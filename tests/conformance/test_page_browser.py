"""The page in a real browser: keys alone, light and dark, live, hostile names, a thousand nodes; and no complaint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page

from devalloc.api.manifests import load
from devalloc.controller.certificate import self_signed
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.browser import Complaints, built_chromium, focused, new_page, press, running, wait_until
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.resource_manifests import device, resource_claim, slice_of
from tests.support.served_page import TOKEN, FixedStore, served
from tools import screenshots

Object = dict[str, Any]
CONTRAST = """(() => {
  const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !e.getClientRects().length || e.closest("title")) continue;
    const a = light(numbers(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return bad;
})()"""
"""Texts that are too faint to be read (WCAG AA)."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = built_chromium()
    if program is None:
        pytest.skip("the browser was not fetched here: make built-upstream")
    with running(program, tmp_path_factory.mktemp("browser")) as running_browser:
        yield running_browser


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


# Before the server goes, which a page would complain of: `url` stands before `page` in a test's arguments.
@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, complaints: Complaints) -> Iterator[Page]:
    """At the end nothing may have been complained of, nor asked of another server."""
    settings = getattr(request, "param", {})
    with browser.new_context(ignore_https_errors=True, **settings) as context:  # the controller signs its certificate
        opened = new_page(context)
        complaints.listen(opened)
        yield opened
        opened.evaluate("0")  # what it said so far has come
        assert complaints.texts == []
        assert all(
            each.startswith(("http://127.0.0.1:", "https://127.0.0.1:", "data:")) for each in complaints.requested_urls
        )


@pytest.fixture
def url(store: SQLiteStore) -> Iterator[str]:
    with served(store) as address:
        yield address


def sign_in(page: Page, url: str) -> None:
    page.goto(url)
    wait_until(page, "document.activeElement.id === 'token'")  # who comes types at once
    page.keyboard.insert_text(TOKEN)
    press(page, "Enter")
    wait_until(page, "document.querySelector('.live.on')")


def example(store: SQLiteStore, *names: str) -> None:
    objects = [manifest.content for manifest in load([f"examples/{name}" for name in names]).documents]
    fill(store, *{Key.of(obj): obj for obj in objects}.values())
    machine_allocator(store).round()


def look_now(page: Page) -> None:
    """As when a user comes back to the page: it does not wait for its time."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def total(page: Page, what: str) -> str:
    return str(page.evaluate(f"document.getElementById('total:{what}').querySelector('dd').textContent"))


def test_signing_in_and_out(page: Page, complaints: Complaints, store: SQLiteStore) -> None:
    """With TLS, as the controller serves it."""
    with served(store, tls=self_signed(["127.0.0.1"])) as url:
        page.goto(url)
        wait_until(page, "document.activeElement.id === 'token'")
        page.keyboard.insert_text("wrong")
        press(page, "Enter")
        wait_until(page, "document.querySelector('[role=alert]')")
        assert "This token is unknown" in page.inner_text("body")
        (complaint,) = complaints.texts
        assert "401" in complaint
        complaints.texts.clear()
        sign_in(page, url)
        (cookie,) = page.context.cookies()
        attributes = (cookie["name"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"])
        assert attributes == ("__Host-devalloc", True, True, "Strict")
        assert page.evaluate("document.cookie") == "", "no script gets at the token"
        assert TOKEN not in page.evaluate("location.href + document.documentElement.outerHTML")
        page.evaluate("document.querySelector('form[action=logout] button').click()")
        wait_until(page, "document.getElementById('token')")
        assert page.context.cookies() == []


def test_keys_alone_go_everywhere(url: str, page: Page, store: SQLiteStore) -> None:
    example(store, "mig-partitions", "sriov-vfs")
    sign_in(page, url)
    for target in ("claims", "nodes", "machines", "q"):
        press(page, "Tab")
        assert page.evaluate("document.activeElement.hash") == f"#{target}"
        shown = "document.activeElement.getBoundingClientRect()"
        assert page.evaluate(f"{shown}.left >= 0 && {shown}.top >= 0"), "where the focus is, is seen"
    waiting = page.evaluate("document.querySelectorAll('#claims-table .toggle').length")
    press(page, *["Tab"] * (4 + waiting))
    nodes = page.evaluate("[...document.querySelectorAll('[id^=\"node:\"]')].map((each) => each.id)")
    assert focused(page) == nodes[0], "the tree is one stop"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    press(page, "ArrowRight")
    wait_until(page, "document.querySelector('[id^=\"card:dgx-a\"]')")
    press(page, "ArrowDown")
    card = focused(page)
    assert card.startswith("card:dgx-a")
    press(page, "Enter")
    device = f"device:{card.removeprefix('card:')}/whole"
    wait_until(page, f"document.getElementById('{device}')")
    press(page, "ArrowRight")
    assert focused(page) == device
    press(page, "ArrowUp", "ArrowDown", "ArrowLeft")
    assert focused(page) == card
    press(page, "ArrowLeft")
    wait_until(page, f"!document.getElementById('{device}')")
    press(page, "ArrowLeft", "ArrowLeft")
    wait_until(page, "!document.querySelector('[id^=\"card:\"]')")
    assert focused(page) == nodes[0]
    press(page, "End")
    assert focused(page) == nodes[-1]
    press(page, "Home", "/")
    assert focused(page) == "q"
    page.keyboard.insert_text("router")
    wait_until(page, "document.querySelectorAll('[id^=\"claim:\"]').length === 1")
    assert page.evaluate("document.querySelector('tbody tr').id") == "claim:default/router"
    wait_until(page, "document.querySelector('[id^=\"device:sriov-b\"]')")  # what it holds is shown at once
    assert page.evaluate("location.search") == "?q=router"
    page.goto(page.evaluate("location.href"))
    wait_until(page, "document.querySelector('.live.on')")
    assert page.evaluate("document.querySelectorAll('[id^=\"claim:\"]').length") == 1, "a link shows the same"
    press(page, "/", "Escape")
    wait_until(page, "document.querySelectorAll('[id^=\"claim:\"]').length > 1")


def test_roles_and_names_are_those_of_a_tree(url: str, page: Page, store: SQLiteStore) -> None:
    """As a screen reader has it."""
    fill(store, gpu_class(), gpu_pool("p", 2))
    sign_in(page, url)
    page.evaluate("document.getElementById('node:n').click()")
    wait_until(page, "document.getElementById('card:p')")
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert roles["treegrid"] == ["Nodes, their cards, and the devices of these"]
    assert {"Search", "0 claims pending, 2 of 2 devices available"} <= {*roles["searchbox"], *roles["StaticText"]}
    assert {"main", "banner", "navigation", "rowheader", "columnheader", "status", "search"} <= roles.keys()
    levels = page.evaluate("[...document.querySelectorAll('#tree tbody tr')].map((e) => [e.ariaLevel, e.ariaExpanded])")
    assert levels == [["1", "true"], ["2", "false"]]
    assert page.evaluate("document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1


@pytest.fixture(scope="module")
def all_kinds() -> Iterator[str]:
    """As on the pictures of the docs: both dialects, quotas, machines."""
    with served(FixedStore(screenshots.objects())) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_both_to_be_read(all_kinds: str, page: Page, scheme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(all_kinds)
    assert page.evaluate(CONTRAST) == []
    sign_in(page, all_kinds)
    page.evaluate("document.getElementById('node:dgx-a').click()")
    wait_until(page, "document.querySelector('[id^=\"card:dgx-a\"]')")
    page.evaluate("document.querySelector('[id^=\"card:dgx-a\"]').click()")
    wait_until(page, "document.querySelector('.picture .parts')")
    page.evaluate("document.querySelector('[id=\"claim:default/pair\"] .toggle').click()")
    wait_until(page, "document.querySelector('.refusal ol')")
    assert page.evaluate(CONTRAST) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) > 382) == (scheme == "light")
    assert "pod notebook-0" in page.inner_text("body")
    for width in (420, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width, "in a narrow window nothing is beside it"
        texts = "[...document.querySelectorAll('main :is(td, th[scope=row], li, p)')]"
        assert page.evaluate(f"{texts}.every((each) => each.getBoundingClientRect().right <= {width})")
        labels = "document.querySelector('#tree [data-label=Available]')"
        assert page.evaluate(f"getComputedStyle({labels}, '::before').content") == '"Available "'
        assert page.evaluate(CONTRAST) == []


def test_pictures_show_what_is_free_who_holds_it_and_what_is_in_the_way(all_kinds: str, page: Page) -> None:
    sign_in(page, all_kinds)
    tile = "document.getElementById('tile:node:pod-a')"
    assert page.evaluate(f"{tile}.querySelector('small').textContent") == "5 of 8 available"
    page.evaluate(f"{tile}.querySelector('a').click()")
    wait_until(page, "document.getElementById('card:slices:pod-a-0000-07-00')")
    assert focused(page) == "node:pod-a", "the picture leads to the row that has the rest"
    press(page, "ArrowDown", "ArrowDown", "Enter")
    wait_until(page, "document.querySelector('.picture')")
    parts = page.evaluate("[...document.querySelectorAll('.parts text')].map((each) => each.textContent)")
    assert parts[:2] == ["mig-3g-20gb-0", "resourceclaim team-a/notebook for pod notebook-0"]
    press(page, "ArrowDown")
    assert focused(page) == "device:slices:pod-a-0000-07-00/whole", "the keys pass the picture by"
    claim = "document.getElementById('claim:default/pair')"
    page.evaluate(f"{claim}.querySelector('.toggle').focus()")
    press(page, "Enter")
    wait_until(page, f"{claim}.querySelector('.refusal .badge')")
    text = page.evaluate(f"{claim}.querySelector('.refusal').textContent")
    assert "match attribute" in text
    assert "devalloc explain pair -n default" in text
    press(page, "Enter")
    wait_until(page, f"!{claim}.querySelector('.refusal')")


def test_the_page_follows_changes_by_itself(url: str, page: Page, store: SQLiteStore) -> None:
    fill(store, gpu_class(), gpu_pool("p", 2), gpu_claim("first"))
    sign_in(page, url)
    assert (total(page, "Available"), total(page, "Claims pending")) == ("2", "1")
    page.evaluate("document.getElementById('node:n').click()")
    wait_until(page, "document.getElementById('card:p')")
    press(page, "ArrowDown")
    page.evaluate("document.getElementById('total:Available').isSame = true")
    machine_allocator(store).round()
    wait_until(page, "document.querySelector('[id=\"claim:default/first\"] .badge').textContent === 'Allocated'")
    assert (total(page, "Available"), total(page, "Claims pending")) == ("1", "0")
    assert page.evaluate("document.getElementById('news').textContent") == "0 claims pending, 1 of 2 devices available"
    assert page.evaluate("document.getElementById('total:Available').isSame"), "what stays is not made anew"
    assert focused(page) == "card:p", "nor does the focus go"
    pool = store.get("DevicePool", None, "p")
    store.delete("DeviceClaim", "default", "first")
    store.delete("DevicePool", None, pool["metadata"]["name"])
    wait_until(page, "!document.getElementById('node:n')")
    assert total(page, "Devices") == "0"


def test_a_user_who_loses_access_sees_why(page: Page, complaints: Complaints, store: SQLiteStore) -> None:
    class Barred:
        status_now = 200

        def status(self, token: str | None, path: str) -> int:
            return self.status_now

    access = Barred()
    with served(store, access) as url:
        sign_in(page, url)
        access.status_now = 403
        look_now(page)
        wait_until(page, "document.body.innerText.includes('no permission to see this page')")
        complaints.texts[:] = [each for each in complaints.texts if "403" not in each]


def test_the_page_says_that_it_is_out_of_date_without_a_controller(
    page: Page, complaints: Complaints, store: SQLiteStore
) -> None:
    with served(store) as url:
        sign_in(page, url)
    look_now(page)
    wait_until(page, "document.querySelector('.live.off')")
    assert "Not up to date" in page.inner_text("body")
    complaints.texts[:] = [each for each in complaints.texts if "ERR_" not in each]


def test_names_of_others_do_nothing(url: str, page: Page, complaints: Complaints, store: SQLiteStore) -> None:
    hostile = '"><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1"><b id=view>'
    pool = gpu_pool("p", node="n", model=hostile)
    pool["spec"]["nodeName"] = hostile
    pool["spec"]["attributes"] = [*pool["spec"].get("attributes", []), {"name": "rack", "stringValue": hostile}]
    pool["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": hostile}]
    claim = gpu_claim("c", reason=hostile, message=hostile)
    claim["spec"]["claims"][0]["deviceClass"] = hostile
    fill(store, gpu_class(), pool, claim)
    sign_in(page, url)
    page.evaluate("document.querySelector('#tree tbody tr').click()")
    wait_until(page, "document.getElementById('card:p')")
    page.evaluate("document.getElementById('card:p').click()")
    wait_until(page, "document.querySelector('.parts')")
    assert hostile in page.evaluate("document.querySelector('.parts').textContent")
    page.evaluate("document.querySelector('#claims-table .toggle').click()")
    wait_until(page, "document.querySelector('.refusal code')")
    press(page, "/")
    page.keyboard.insert_text(hostile)
    wait_until(page, "location.search.includes('script')")
    wait_until(page, "document.querySelector('.live.on')")
    assert page.evaluate("window.hurt === undefined")
    assert page.evaluate("document.querySelectorAll('img, b[id]').length") == 0
    assert page.evaluate("document.scripts.length") == 1
    assert hostile in page.evaluate("document.querySelector('#tree tbody th').textContent")
    assert complaints.texts == []
    # Were one of them to get into the page as HTML, the policy would still keep it from doing anything.
    page.evaluate("""document.body.insertAdjacentHTML("beforeend", '<img src="data:," onerror="window.hurt = 1">')""")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hurt = 1'}))")
    page.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert page.evaluate("window.hurt === undefined")
    assert all("Content Security Policy" in each for each in complaints.texts)
    assert len(complaints.texts) >= 2
    complaints.texts.clear()


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_it_shows_all_the_same(url: str, page: Page, store: SQLiteStore) -> None:
    example(store, "mig-partitions")
    page.goto(url)
    wait_until(page, "document.activeElement.id === 'token'")
    page.keyboard.insert_text(TOKEN)
    press(page, "Enter")
    wait_until(page, "document.querySelector('#tree')")
    page.evaluate("document.querySelector('#tree .toggle').click()")
    wait_until(page, "document.querySelector('[id^=\"card:dgx-a\"]')")
    assert "open=node" in page.evaluate("location.search")
    page.evaluate("document.getElementById('q').focus()")
    page.keyboard.insert_text("train")
    press(page, "Enter")
    wait_until(page, "document.querySelectorAll('[id^=\"claim:\"]').length === 1")


@pytest.fixture
def large() -> Iterator[str]:
    """A thousand nodes of 16 devices, every other one publishes slices."""
    names = [(f"node-{i}", f"node-{i}-c{card}", i % 2) for i in range(1000) for card in range(2)]
    pools = [gpu_pool(pool, 8, node, model="A100") for node, pool, odd in names if odd]
    slices = [
        slice_of(pool, node, [device(f"d{number}", model="A100") for number in range(8)])
        for node, pool, odd in names
        if not odd
    ]
    waiting = [claim for i in range(50) for claim in (gpu_claim(f"c{i}"), resource_claim(f"r{i}"))]
    with served(FixedStore([gpu_class(), *pools, *slices, *waiting])) as address:
        yield address


def test_a_thousand_nodes_are_walked_and_searched(large: str, page: Page) -> None:
    sign_in(page, large)
    assert (total(page, "Nodes"), total(page, "Devices")) == ("1000", "16000")
    assert page.evaluate("document.querySelectorAll('#tree tbody tr').length") == 1000
    assert page.evaluate("document.querySelectorAll('#fleet .squares .level4').length") == 1000
    page.evaluate("document.getElementById('node:node-0').focus()")
    press(page, "End")
    assert focused(page) == "node:node-999"
    press(page, "ArrowRight")
    wait_until(page, "document.getElementById('card:node-999-c1')")
    press(page, "ArrowDown", "ArrowRight")
    wait_until(page, "document.getElementById('device:node-999-c0/d7')")
    press(page, "/")
    page.keyboard.insert_text("node-500-c1")
    wait_until(page, "document.querySelectorAll('[id^=\"node:\"]').length === 1")
    wait_until(page, "document.getElementById('device:slices:node-500-c1/d7')")
    assert len(page.evaluate("document.documentElement.outerHTML")) < 1_000_000
