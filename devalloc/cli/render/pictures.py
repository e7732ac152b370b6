"""Pictures for a terminal: what is free of a node, the parts of a card with who holds them, and what is in the way of a
claim. The page draws the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from devalloc.cli.layout import wrap_sentence
from devalloc.cli.render.output import one_line
from devalloc.controller.refusals import Layer, Refusal
from devalloc.usage.overview import STATES, DeviceCounts
from devalloc.usage.overview.model import CardSummary, ClaimSummary, NodeSummary
from devalloc.usage.overview.picture import CardPicture, Piece, card_picture

STYLES = {"free": "green", "shared": "cyan", "held": "blue", "unavailable": "red", "excluded": "bright_black"}
_MARKS = {"free": "-", "shared": "▒", "held": "█", "unavailable": "x", "excluded": "░"}
"""They differ without colours, too."""
_LAYERS = {"all": "", "out": "red", "match": "cyan", "held": "blue", "excluded": "bright_black", "free": "green"}
BAR = 10
"""Characters of a bar in a table."""
_FUNNEL = 24
_MAX_OBSTACLES = 50


def counts_bar(counts: DeviceCounts, width: int = BAR) -> Text:
    """Devices by state; each state that there is has a character at least."""
    numbers = {state: getattr(counts, state) for state in STATES}
    sizes = {state: max(1, width * number // max(1, counts.devices)) for state, number in numbers.items() if number}
    while sizes and sum(sizes.values()) != width:
        step = 1 if sum(sizes.values()) < width else -1
        some = [each for each in sizes if step > 0 or sizes[each] > 1] or [*sizes]
        # What is furthest from its true size
        state = max(some, key=lambda each: step * (width * numbers[each] / counts.devices - sizes[each]))
        sizes[state] += step
    bar = Text()
    for state, size in sizes.items():
        bar.append(_MARKS[state] * size, STYLES[state])
    return bar if sizes else Text(" " * width)


def node_lines(node: NodeSummary, width: int) -> Iterator[Text]:
    """The cards of a node."""
    for card in node.cards:
        yield from card_lines(card, width)


def card_lines(card: CardSummary, width: int) -> Iterator[Text]:
    """A card as a bar of its parts, and in words what does not fit into it."""
    picture = card_picture(card)
    numa = f"NUMA {card.numa}" if card.numa else ""
    words = ", ".join(filter(None, (card.model, card.driver, numa)))
    yield Text()
    yield Text(f"{one_line(card.name)}  ", "bold").append(one_line(words), "not bold dim")
    for remark in filter(None, (card.cordoned, card.note)):
        yield from (Text(part, "red") for part in wrap_sentence(one_line(remark), width))
    sizes = _sizes(picture, width)
    for texts in ([each.name for each in picture.pieces], [each.holder for each in picture.pieces]):
        line = Text()
        for piece, text, size in zip(picture.pieces, texts, sizes, strict=True):
            line.append(f"|{one_line(text)}"[:size].ljust(size), f"reverse {STYLES[piece.state]}")
        yield line
    for piece, size in zip(picture.pieces, sizes, strict=True):
        if max(len(piece.name), len(piece.holder)) >= size:
            yield from _in_words(piece, width)
    if picture.left:
        yield Text(f"  left: {one_line(picture.left)}", "green")


def _sizes(picture: CardPicture, width: int) -> list[int]:
    """Characters of each piece. The ends are rounded, so that the bar is as long as it should be."""
    ends = [round(width * (each.start + each.width)) for each in picture.pieces]
    return [max(1, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def _in_words(piece: Piece, width: int) -> Iterator[Text]:
    """Its name, its state, and who holds it or why none can: below, if that does not fit beside them."""
    line = Text(f"  {one_line(piece.name)}  ").append(piece.state, STYLES[piece.state])
    holder = one_line(piece.holder)
    if not holder or len(line) + 2 + len(holder) <= width:
        yield line.append(f"  {holder}" if holder else "")
        return
    yield line
    yield from (Text(f"    {part}") for part in wrap_sentence(holder, max(1, width - 4)))


def claim_lines(claim: ClaimSummary, refusal: Refusal | None, width: int) -> Iterator[Text]:
    """Why a claim waits. ``refusal``: None if that is not worked out."""

    def wrapped(text: str, style: str = "") -> list[Text]:
        return [Text(part, style) for part in wrap_sentence(one_line(text), width)]

    yield from wrapped(claim.message)
    for funnel in refusal.funnels if refusal is not None else ():
        yield Text()
        yield Text(f"Request {one_line(funnel.request)}", "bold")
        yield from map(_layer_line, funnel.layers, [max(1, funnel.layers[0].count)] * len(funnel.layers))
    if refusal is not None and refusal.obstacles:
        yield Text()
        yield Text("In the way", "bold")
        for one in refusal.obstacles[:_MAX_OBSTACLES]:
            yield Text(f"  {one_line(one.kind)}  ", "yellow").append(one_line(one.which), "not yellow")
    if refusal is not None and refusal.advice:
        yield Text()
        yield from wrapped(f"What to do: {refusal.advice}")
    yield Text()
    kind = "resourceclaim/" if claim.kind == "ResourceClaim" else ""
    yield from wrapped(f"More: devalloc explain {kind}{claim.name} -n {claim.namespace}", "dim")


def _layer_line(layer: Layer, devices: int) -> Text:
    start = _FUNNEL * layer.start // devices
    size = max(1, round(_FUNNEL * layer.count / devices)) if layer.count else 0
    line = Text(f"{layer.count:>6} ").append(" " * min(start, _FUNNEL - size))
    line.append("█" * size, _LAYERS[layer.kind])
    line.pad_right(max(0, 7 + _FUNNEL + 1 - len(line)))
    return line.append(one_line(layer.what)).append(f"  {one_line(layer.example)}" if layer.example else "", "dim")


def plain_lines(texts: Sequence[str], width: int) -> Iterator[Text]:
    """Sentences, broken between words."""
    for text in texts:
        yield from (Text(part) for part in wrap_sentence(one_line(text), width))
