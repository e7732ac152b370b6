"""Fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pci_cards
from tests.support.fake_host import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def gpu(host: FakeHost) -> FakeHost:
    """A GPU with its audio function in one group."""
    host.add(pci_cards.gpu(iommu_group=7))
    host.add(pci_cards.gpu_audio(iommu_group=7))
    return host
