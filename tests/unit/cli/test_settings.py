"""Settings classes: their options, their variables, and the page that lists them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from devalloc.cli.command import verb
from devalloc.cli.main import cli
from devalloc.cli.options.common import PLACEMENT, option_of, settings_options
from devalloc.inventory.capacity import parse_bandwidth, parse_ratio, parse_size
from devalloc.settings import (
    BadSetting,
    OneOf,
    PathTo,
    Whole,
    build,
    given_options,
    group,
    parse_duration,
    setting,
    settings_of,
    settings_with_classes,
    title_of,
)
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT, POLICIES
from tests.support.repository import REPO
from tools import settings_page
from tools.settings_page import PROCESSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cabinet:
    """A group."""

    width: float = setting("How wide.", type=parse_duration, default="2m", metavar="DURATION")
    labels: tuple[str, ...] = setting("What is on it.", flag="--label", default=(), env="CABINET_LABEL")
    folders: tuple[Path, ...] = setting("Folders.", type=PathTo(), default=(), env="CABINET_FOLDERS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """All of it."""

    max_number: int | None = setting("How many.", type=int, env="ROOM_MAX", unset="any number")
    cabinet: Cabinet = group(Cabinet)
    is_open: bool = setting("Whether it is open.", flag="--open", default=False)
    lamp: bool | None = setting("The lamp.", flag="--lamp/--no-lamp", unset="if it is dark")


def test_the_help_lists_the_options_of_a_group_below_its_title() -> None:
    @verb("look")
    @settings_options(Room, "room")
    def look(room: Room) -> int:
        return 0

    lines = CliRunner().invoke(look, ["--help"]).output.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", "Cabinet:"]
    own, of_group = "\n".join(lines).split("Cabinet:")
    assert "--open" in own
    assert "--debug" in own
    assert "--width" not in own
    assert of_group.startswith("\n  A group.\n\n  --width DURATION")


@pytest.mark.parametrize("name", ["up", "node", "controller"])
def test_the_help_of_a_process_has_the_headings_of_the_page_of_settings(name: str) -> None:
    lines = CliRunner().invoke(cli, [name, "--help-all"]).output.splitlines()
    headings = [line.removesuffix(":") for line in lines if re.fullmatch(r"[A-Z][a-z]+:", line)]
    assert headings[0] == "Options"
    assert len(headings) > 2
    assert {*headings[1:]} <= {*re.findall(r"^## (\w+)$", settings_page.page(), re.MULTILINE)}


@pytest.mark.parametrize("name", ["up", "node", "controller"])
def test_the_full_help_of_one_group_has_its_settings_only(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    groups = {title_of(of): of for _, of in settings_with_classes(PROCESSES[name]) if of is not PROCESSES[name]}
    assert len(groups) > 1
    for title, settings_class in groups.items():
        text = CliRunner().invoke(cli, [name, "--help-all", title.lower()]).output
        own = [each.flag for each, of in settings_with_classes(PROCESSES[name]) if of is settings_class]
        assert re.findall(r"^  (--[a-z-]+(?: / --[a-z-]+)?)", text, re.MULTILINE) == [
            flag.replace("/", " / ") for flag in own
        ]
    assert "'nonsense' is not one of" in CliRunner().invoke(cli, [name, "--help-all", "nonsense"]).output


def test_a_bad_setting_begins_with_its_option() -> None:
    assert str(BadSetting("--width", "must be more than 0, not -1")) == "--width must be more than 0, not -1"
    assert str(BadSetting("--width", ": no number")) == "--width: no number"
    assert BadSetting("--width", "is odd").flag == "--width"


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (OneOf(["a", "b"]), ("a", "a"), "c"),
        (OneOf(["a"], is_open=True), ("c", "c"), None),
        (Whole(1, 5), ("5", 5), "6"),
        (Whole(1), ("6", 6), "0"),
        (PathTo(), ("x", Path("x")), None),
    ],
)
def test_readers_of_settings_refuse_what_cannot_be(read: Any, good: tuple[str, Any], bad: str | None) -> None:
    assert read(good[0]) == good[1]
    if bad is not None:
        with pytest.raises(ValueError, match=bad):
            read(bad)


def parsed(*words: str, env: dict[str, str] | None = None) -> Room:
    seen: list[Room] = []

    @click.command()
    @click.option("--other", default="x")
    @settings_options(Room, "room")
    def command(room: Room, other: str) -> None:
        assert other == "x"
        seen.append(room)

    result = CliRunner().invoke(command, words, env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_each_field_is_an_option_also_those_of_groups() -> None:
    flags = [each.flag for each in settings_of(Room)]
    assert flags == ["--max-number", "--width", "--label", "--folders", "--open", "--lamp/--no-lamp"]
    words = ("--max-number", "3", "--width", "90s", "--label", "a", "--label", "b", "--open", "--no-lamp")
    assert parsed(*words) == Room(
        max_number=3, cabinet=Cabinet(width=90.0, labels=("a", "b")), is_open=True, lamp=False
    )


def test_without_options_a_class_has_the_defaults_that_it_declares() -> None:
    assert parsed() == Room() == build(Room, {})
    assert (Room().cabinet.width, Room().lamp, Room().is_open) == (120.0, None, False)


def test_variables_set_what_no_option_sets() -> None:
    env = {"ROOM_MAX": "7", "CABINET_LABEL": "a b", "CABINET_FOLDERS": "/a:/b c"}
    assert parsed(env=env) == Room(max_number=7, cabinet=Cabinet(labels=("a", "b"), folders=(Path("/a"), Path("/b c"))))
    assert parsed("--max-number", "1", "--label", "c", env=env).max_number == 1
    assert parsed("--label", "c", env=env).cabinet.labels == ("c",)


def test_the_help_names_variables_and_what_happens_by_default() -> None:
    helps = {each.parameter: each.full_help for each in settings_of(Room)}
    assert helps["max_number"] == "How many [env: ROOM_MAX; default: any number]."
    assert helps["label"] == "What is on it [env: CABINET_LABEL, separated by blanks]."
    assert helps["folders"] == "Folders [env: CABINET_FOLDERS, separated by colons]."
    assert helps["lamp"] == "The lamp [default: if it is dark]."
    assert helps["width"] == "How wide."


def test_the_help_names_each_default_once() -> None:
    text = " ".join(CliRunner().invoke(cli, ["node", "--help-all"], catch_exceptions=False).output.split())
    assert "[default: the first in --cni-conf-dir]. --cni-conf-dir" in text


def test_options_that_change_something_are_known() -> None:
    assert given_options(Room()) == []
    room = Room(max_number=0, lamp=False, cabinet=Cabinet(labels=("a",)))
    assert given_options(room) == ["--max-number", "--label", "--lamp/--no-lamp"]


def test_a_verb_can_have_one_option_of_a_class() -> None:
    @click.command()
    @option_of(Room, "label")
    def command(label: tuple[str, ...]) -> None:
        click.echo(" and ".join(label))

    assert CliRunner().invoke(command, ["--label", "a", "--label", "b"]).output == "a and b\n"


@pytest.fixture(params=PROCESSES)
def process(request: pytest.FixtureRequest) -> tuple[click.Command, type[Any]]:
    verb = request.param
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return command, PROCESSES[verb]


def test_the_options_of_a_process_are_its_settings_in_their_order(process: tuple[click.Command, type[Any]]) -> None:
    command, settings_class = process
    common = ["--debug", "--log-format", "--log-level"]
    flags = [each.flag.partition("/")[0] for each in settings_of(settings_class)]
    assert [each.opts[0] for each in command.params if each.opts[0] != "--help-all"] == flags + common
    assert max(Counter(each.parameter for each in settings_of(settings_class)).values()) == 1


def test_an_option_wins_over_its_own_variable_and_that_over_the_one_of_the_verb(
    process: tuple[click.Command, type[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, settings_class = process
    by_name = {each.name: each for each in command.params}
    for each in settings_of(settings_class):
        derived = f"DEVALLOC_{command.name}_{each.parameter}".replace("-", "_").upper()
        assert by_name[each.parameter].envvar == list(dict.fromkeys(filter(None, (each.env, derived))))

    texts = [each for each in settings_of(settings_class) if each.type in (None, parse_duration) and each.metavar]
    for each in texts:
        variables, name = by_name[each.parameter].envvar, each.parameter
        assert isinstance(variables, list)
        expected = list(map(str, range(len(variables), -1, -1)))
        given = [each.flag, expected[0]]
        seen = []
        with monkeypatch.context() as env:
            for number, variable in enumerate(variables, 1):
                env.setenv(variable, expected[number])
            for words in (given, []):
                seen.append(command.make_context("x", list(words)).params[name])
            env.delenv(variables[0])
            seen.append(command.make_context("x", []).params[name])
        as_value = (lambda text: (text,)) if each.is_repeatable else (each.type or str)
        default = command.make_context("x", []).params[name]
        assert seen == [*map(as_value, expected[:2]), as_value(expected[2]) if len(variables) == 2 else default], each


def test_without_options_a_process_has_the_defaults_of_its_class(process: tuple[click.Command, type[Any]]) -> None:
    command, settings_class = process
    values = {name: value for name, value in command.make_context("x", []).params.items() if name not in ("debug",)}
    if command.name != "guest-monitor":  # which reads its texts itself
        assert build(settings_class, values) == settings_class()


def test_the_placement_option_offers_the_policies_of_the_solver_which_it_does_not_load() -> None:
    assert isinstance(PLACEMENT.type, OneOf)
    assert list(PLACEMENT.type.words) == [policy.name for policy in POLICIES]
    assert PLACEMENT.default == DEFAULT_PLACEMENT


def test_the_page_of_settings_is_current() -> None:
    """``python -m tools.settings_page`` writes it."""
    assert (REPO / "docs" / "settings.md").read_text() == settings_page.page()


def test_the_page_of_settings_shows_values_as_they_are_read() -> None:
    text = settings_page.page()
    for example, size in (("500GB", 500 * 2**30), ("20Gi", 20 * 2**30)):
        assert f"`{example}`" in text
        assert parse_size(example) == size
    for example, rate in (("10Gbps", 1_250_000_000), ("125MB/s", 125 * 2**20)):
        assert f"`{example}`" in text
        assert parse_bandwidth(example) == rate
    assert parse_ratio("1.5") * 2 == 3
    assert "| DIR; repeatable | `/opt/cni/bin` |" in text


NEONS_AGENT = {"7777", "9100", "9101", "10300"}
"""Ports that Neon's agent takes on its host by its shipped configuration; it ends if another program has 10300."""


def test_no_process_of_a_host_takes_a_port_of_neons_agent_by_default() -> None:
    for name in ("up", "node", "controller"):
        for each in settings_of(PROCESSES[name]):
            ports = set(re.findall(r"\b\d{4,5}\b", f"{each.default} {each.unset}"))
            assert not ports & NEONS_AGENT, (name, each.flag)
