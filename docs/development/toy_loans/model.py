"""Loan: a device that someone has without a claim."""

from __future__ import annotations

from typing import Literal

from devalloc.api.fields import ApiModel, PlainName, Text
from devalloc.api.object_meta import ObjectMeta


class LoanSpec(ApiModel):
    """Which device is lent."""

    device_pool_name: PlainName
    device_name: PlainName
    borrower: Text = ""
    """Who has it."""


class LoanStatus(ApiModel):
    """What the controller has made of it."""

    lent: bool = False


class Loan(ApiModel):
    """A device that no claim gets as long as the object is there. Namespaced."""

    api_version: Literal["toys.example.com/v1"] = "toys.example.com/v1"
    kind: Literal["Loan"] = "Loan"
    metadata: ObjectMeta
    spec: LoanSpec
    status: LoanStatus | None = None
