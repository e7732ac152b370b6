"""docs/attributes.md shows what is published of a card of each kind."""

from __future__ import annotations

import os

from devalloc.device_kinds import DEVICE_KINDS
from tools import attributes_page


def test_the_page_is_what_sample_hosts_publish() -> None:
    """If not: python -m tools.attributes_page."""
    if os.environ.get("DEVALLOC_UPDATE_DOCS") == "1":
        attributes_page.PAGE.write_text(attributes_page.page())
    assert attributes_page.PAGE.read_text() == attributes_page.page()


def test_it_has_a_card_of_each_kind_that_most_hosts_have() -> None:
    page = attributes_page.page()
    for name in ("gpu", "nic", "storage", "accelerator"):
        assert name in DEVICE_KINDS
        assert f"Driver `{name}.devalloc.io`" in page
