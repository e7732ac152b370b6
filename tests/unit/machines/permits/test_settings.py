"""Settings by which any client could ask are refused; eras differ in what there is for machines."""

from __future__ import annotations

import ssl

import pytest

from devalloc.machines.permits.settings import Settings, UnsafeSettings
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra

TOKEN = "0123456789abcdef"


def test_beyond_loopback_those_who_ask_are_known() -> None:
    plain, mutual = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    mutual.verify_mode = ssl.CERT_REQUIRED
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert Settings(host=host).host == host
    for tls, token in ((None, None), (plain, None)):
        with pytest.raises(UnsafeSettings):
            Settings(host="0.0.0.0", tls=tls, token=token)
    for tls, token in ((None, TOKEN), (plain, TOKEN), (mutual, None), (mutual, TOKEN)):
        assert Settings(host="0.0.0.0", tls=tls, token=token).tls is tls


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UnsafeSettings, match="at least 16"):
        Settings(token="short")
    with pytest.raises(ValueError, match="compute unit"):
        Settings(unit=Resources(0, 1))
    with pytest.raises(ValueError, match="watermark"):
        Settings(watermark=(1.1, 0.9))


def test_limits() -> None:
    limit, system = Resources(10_000, 1000), Resources(500, 100)
    assert Settings().limits(limit) == (limit, Resources(9000, 900))
    for era in ProtocolEra:
        assert Settings(era=era, system=system).limits(limit) == (Resources(9500, 900), Resources(8550, 810))
    assert Settings(watermark=(0.5, 0.9)).limits(limit)[1] == Resources(5000, 900)
