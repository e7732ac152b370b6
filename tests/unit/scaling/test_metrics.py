"""Metrics of guests are read from the few lines that count, and hostile text is refused as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.metrics import (
    CPUS,
    MAX_CPUS,
    MAX_TEXT,
    MAX_WINDOWS,
    GuestReport,
    LfcMetrics,
    MetricsError,
    SystemMetrics,
    read_lfc_metrics,
    read_system_metrics,
)
from devalloc.scaling.versions import ProtocolEra

MIB, GIB = 2**20, 2**30


def _gauge(name: str, value: object, labels: str = "") -> str:
    return f"# HELP {name} what it is\n# TYPE {name} gauge\n{name}{labels} {value}\n"


SYSTEM = {
    "host_load1": 0.3,
    "host_load5": 0.25,
    "host_memory_total_bytes": 4 * GIB,
    "host_memory_available_bytes": 3 * GIB,
    "host_memory_cached_bytes": 512 * MIB,
}


def _system(**changed: str) -> str:
    return "".join(changed.get(name, _gauge(name, value)) for name, value in SYSTEM.items())


def _windows(*durations: object, value: int = 100) -> str:
    name = "lfc_approximate_working_set_size_windows"
    lines = [f'{name}{{duration_seconds="{duration}"}} {value + i}\n' for i, duration in enumerate(durations)]
    return f"# TYPE {name} gauge\n" + "".join(lines)


LFC = _gauge("lfc_hits", 10) + _gauge("lfc_misses", 4) + _gauge("lfc_writes", 2)


def test_usage_is_what_is_not_available_and_what_the_kernel_needs() -> None:
    assert read_system_metrics(_system()) == SystemMetrics(
        0.3, 0.25, GIB + 100 * MIB, 512 * MIB, GuestReport(None, 4 * GIB)
    )
    assert read_system_metrics(_system().encode()) == read_system_metrics(_system())


@pytest.mark.parametrize(
    ("gauge", "cpus"),
    [
        ("", None),
        (_gauge(CPUS, 3), 3),
        (_gauge(CPUS, "2.9"), 2),
        (_gauge(CPUS, -1), None),
        (_gauge(CPUS, "NaN"), None),
        (_gauge(CPUS, int(MAX_CPUS) + 1), None),
        (_gauge(CPUS, 3) * 2, None),
        (f"{CPUS} 3\n", None),
        (f"{CPUS} 3\n" * 5000, None),
    ],
)
def test_what_a_guest_says_of_its_cpus_never_costs_the_rest(gauge: str, cpus: int | None) -> None:
    metrics = read_system_metrics(_system() + gauge)
    assert metrics.guest == GuestReport(cpus, 4 * GIB)
    assert metrics.load1 == 0.3


def test_each_era_reads_what_it_knows() -> None:
    load = _gauge("host_load1", 0.3)
    memory = _gauge("host_memory_total_bytes", 4 * GIB) + _gauge("host_memory_available_bytes", 3 * GIB)
    assert read_system_metrics(load + memory, ProtocolEra.V0_31) == SystemMetrics(
        0.3, memory_usage=GIB + 100 * MIB, guest=GuestReport(None, 4 * GIB)
    )
    with pytest.raises(MetricsError, match="host_load5 is missing; host_memory_cached_bytes is missing"):
        read_system_metrics(load + memory, ProtocolEra.NEWEST)
    assert read_lfc_metrics(LFC, ProtocolEra.V0_31) == LfcMetrics(10, 4, 2)


def test_all_ways_in_which_a_line_may_be_written() -> None:
    for line in [
        'host_load1{host="a",collector="load"} 0.3',
        'host_load1 { host = "a" , } 3e-1 1700000000000',
        'host_load1{host="a}b,c=\\"d\\"\\\\"} 0.30\r',
        "host_load1\t+.3",
        "  host_load1 0.3  ",
    ]:
        assert read_system_metrics(_system(host_load1=f"#  TYPE  host_load1  gauge \n{line}\n")).load1 == 0.3, line


def test_other_metrics_do_not_matter_however_they_look() -> None:
    noise = "host_load15 NaN\nhost_load1_x{ 1\n# TYPE host_load1:rate counter\n}{\n\x00\x01\n" + "x" * 100_000 + "\n"
    assert read_system_metrics(noise + _system() + noise) == read_system_metrics(_system())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "host_load1 is missing"),
        ("host_load1 0.3\n", "not declared to be a gauge"),
        ("# TYPE host_load1 counter\nhost_load1 0.3\n", "not one gauge"),
        ("# TYPE host_load1 gauge\n# TYPE host_load1 gauge\nhost_load1 0.3\n", "not one gauge"),
        ("# TYPE host_load1 gauge\n", "is missing"),
        ("# TYPE host_load1 gauge\nhost_load1 0.3\nhost_load1 0.4\n", "has 2 samples, not one"),
        ('# TYPE host_load1 gauge\nhost_load1{cpu="0"} 0.3\nhost_load1{cpu="1"} 0.4\n', "has 2 samples"),
        (_gauge("host_load1", "NaN"), "not a finite number"),
        (_gauge("host_load1", "+Inf"), "not a finite number"),
        (_gauge("host_load1", "1_0"), "not a finite number"),
        (_gauge("host_load1", "0x1p3"), "not a finite number"),
        (_gauge("host_load1", "٣"), "not a finite number"),
        (_gauge("host_load1", "1e999"), "must be 0 to"),
        (_gauge("host_load1", "-0.1"), "must be 0 to"),
        (_gauge("host_load1", "1000001"), "must be 0 to"),
        (_gauge("host_load1", ""), "cannot be read"),
        (_gauge("host_load1", "1 2 3"), "cannot be read"),
        (_gauge("host_load1", 1, '{host="a'), "labels that cannot be read"),
        (_gauge("host_load1", 1, "{host=a}"), "labels that cannot be read"),
        (_gauge("host_load1", 1, '{a="' + "x" * 5000 + '"}'), "more than 4096 characters"),
    ],
)
def test_gauge_that_is_not_one_good_sample_fails_the_whole(text: str, message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        read_system_metrics(_system(host_load1=text))


def test_all_wrong_values_are_listed_at_once() -> None:
    with pytest.raises(MetricsError) as error:
        read_system_metrics(_system(host_load1="", host_load5=_gauge("host_load5", "-1")))
    assert "host_load1 is missing" in str(error.value)
    assert "host_load5 must be" in str(error.value)


def test_more_available_than_there_is_makes_no_negative_usage() -> None:
    with pytest.raises(MetricsError, match="available_bytes is more than"):
        read_system_metrics(_system(host_memory_available_bytes=_gauge("host_memory_available_bytes", 5 * GIB)))


def test_text_is_bounded() -> None:
    with pytest.raises(MetricsError, match="more than 1048576 bytes"):
        read_system_metrics(_system() + "#" * MAX_TEXT)
    with pytest.raises(MetricsError, match="not UTF-8"):
        read_system_metrics(_system().encode() + b"\xff")
    with pytest.raises(MetricsError, match="more than"):
        read_system_metrics(_system() + "host_load1 1\n" * 70_000)


def test_working_sets_come_one_a_minute_in_any_order() -> None:
    series = LfcMetrics(10, 4, 2, (100, 101, 102))
    assert read_lfc_metrics(LFC + _windows(60, 120, 180)) == series
    assert read_lfc_metrics(LFC + _windows(180, 60, 120)).working_sets == (101, 102, 100)
    assert len(read_lfc_metrics(LFC + _windows(*range(60, 60 * 61, 60))).working_sets) == 60
    for durations, message in {
        (): "is missing",
        (120, 180): "expected 60 seconds, got 120",
        (60, 180): "expected 120 seconds, got 180",
        (60, 60): "two samples of 60",
        (60, 90): "expected 120 seconds, got 90",
        ("60.5",): "not a whole number",
        ("",): "not a whole number",
        ("-60",): "not a whole number",
        tuple(range(60, 60 * (MAX_WINDOWS + 3), 60)): "more than 1440 samples",
    }.items():
        with pytest.raises(MetricsError, match=message):
            read_lfc_metrics(LFC + _windows(*durations))


@given(st.text(alphabet='host_load1 {}=",\\#TYPEgauge.\n0', max_size=40) | st.text(max_size=20))
@settings(max_examples=60)
def test_any_text_is_read_or_refused(text: str) -> None:
    for content in (text, _system() + text, _system().replace("host_load1 0.3", "host_load1" + text)):
        try:
            metrics = read_system_metrics(content)
        except MetricsError:
            continue
        assert 0 <= metrics.load1 <= 1e6
