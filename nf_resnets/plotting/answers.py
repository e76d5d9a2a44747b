"""What a sweep found, in sentences made of its optima."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nf_resnets.plotting.rates import METRICS, power_label

Row = Mapping[str, Any]


def best_of_all(
    optima: Sequence[Row],
    called: Callable[[Row], str],
    *,
    power: Callable[[float], str] = power_label,
    batch_size: str = "batch_size",
) -> str:
    """The best of all optima of the first metric: whose, how good, and at which rate.

    Args:
      optima: as :func:`nf_resnets.plotting.rates_figure` takes them.
      called: ``called(group)`` names the curve of a group.
      power: writes a rate.
      batch_size: the field of the batch size in ``group``.
    """
    metric = optima[0]["metric"]
    label, factor, more_is_better = METRICS[metric]
    own = [one for one in optima if one["metric"] == metric and one["best"] is not None]
    if not own:
        return "No run finished"
    best = (max if more_is_better else min)(own, key=lambda one: one["mean"])
    words, _, unit = label.partition(" (")
    return (
        f"Best {words}: {_measured(factor * best['mean'], unit.rstrip(')'))}, "
        f"{called(best['group'])} at {_size(best, batch_size)} and rate {rate_range(best, power)}"
    )


def growth(
    optima: Sequence[Row],
    called: Callable[[Row], str],
    *,
    power: Callable[[float], str] = power_label,
    batch_size: str = "batch_size",
) -> list[str]:
    """For each curve how its best rate by the first metric moves with the batch size.

    In brackets stands the range of rates as good. Arguments are those of :func:`best_of_all`.
    """
    said = []
    for name, (first, last) in _ends(optima, called, batch_size).items():
        if first is None:
            said.append(f"{name}: no run finished")
        elif first is last:
            said.append(f"{name}: the best rate is {rate_range(first, power)}")
        else:
            start, end = (
                f"{rate_range(o, power)} at {_size(o, batch_size)}" for o in (first, last)
            )
            said.append(f"{name}: the best rate {_verb(first, last)} from {start} to {end}")
    return said


def growth_of_all(
    optima: Sequence[Row], called: Callable[[Row], str], *, batch_size: str = "batch_size"
) -> str:
    """As :func:`growth`, in one short sentence."""
    ends = {
        name: (first, last)
        for name, (first, last) in _ends(optima, called, batch_size).items()
        if first is not None and first is not last
    }
    if not ends:
        return best_of_all(optima, called, batch_size=batch_size)
    verbs = {_verb(first, last) for first, last in ends.values()}
    verb = verbs.pop() if len(verbs) == 1 else "moves"
    rates = (
        f"{name} {power_label(first['best'])} to {power_label(last['best'])}"
        for name, (first, last) in ends.items()
    )
    return f"The best rate {verb} with the batch size: {', '.join(rates)}"


def lowest_end(
    curves: Sequence[Row], called: Callable[[Row], str], *, batch_size: str = "batch_size"
) -> str:
    """Whose training loss ends lowest at the best rates, and where.

    Args:
      curves: as :func:`nf_resnets.plotting.sweep.training_figure` takes them.
      called: ``called(group)`` names the curve of a group.
      batch_size: the field of the batch size in ``group``.
    """
    ends: dict[tuple[str, str], list[float]] = {}
    for one in curves:
        place = called(one["group"]), _size(one, batch_size)
        ends.setdefault(place, []).append(one["train_loss"][-1])
    means = {place: sum(losses) / len(losses) for place, losses in ends.items()}
    means = {place: mean for place, mean in means.items() if math.isfinite(mean)}
    if not means:
        return "No run finished"
    (name, size), loss = min(means.items(), key=lambda item: item[1])
    return f"Lowest training loss at the end: {loss:.3g}, {name} at {size}"


def _ends(
    optima: Sequence[Row], called: Callable[[Row], str], batch_size: str
) -> dict[str, tuple[Any, Any]]:
    """Of each curve the optima of its smallest and its largest batch; None where it has none."""
    curves: dict[str, list[Row]] = {}
    for one in optima:
        if one["metric"] == optima[0]["metric"]:
            curves.setdefault(called(one["group"]), []).append(one)
    found = {}
    for name, own in curves.items():
        own = [one for one in own if one["best"] is not None]
        own.sort(key=lambda one: one["group"].get(batch_size, 0))
        found[name] = (own[0], own[-1]) if own else (None, None)
    return found


def _verb(first: Row, last: Row) -> str:
    if first["best"] == last["best"]:
        return "stays"
    return "grows" if first["best"] < last["best"] else "falls"


def bearable(
    optima: Sequence[Row],
    called: Callable[[Row], str],
    *,
    power: Callable[[float], str] = power_label,
) -> list[str]:
    """For each curve the largest rate at which runs finished and none diverged, with any batch."""
    curves: dict[str, dict[float, list[Row]]] = {}
    for one in optima:
        rates = curves.setdefault(called(one["group"]), {})
        for rate in one["rates"]:
            rates.setdefault(rate["rate"], []).append(rate)
    borne = {
        name: max(
            (rate for rate, of in rates.items()
             if any(each["n"] for each in of) and not any(each["diverged"] for each in of)),
            default=None,
        )
        for name, rates in curves.items()
    }  # fmt: skip
    return [f"{name} {'none' if rate is None else power(rate)}" for name, rate in borne.items()]


def fewest_steps(
    targets: Sequence[Row], called: Callable[[Row], str], *, batch_size: str = "batch_size"
) -> str:
    """The fewest steps to a target, and with which batch size.

    Args:
      targets: as :func:`nf_resnets.plotting.steps.steps_figure` takes them.
      called: ``called(group)`` names the curve of a group.
      batch_size: the field of the batch size in ``group``.
    """
    curves: dict[str, list[Row]] = {}
    for one in targets:
        curves.setdefault(called(one["group"]), []).append(one)
    said = []
    for name, own in curves.items():
        reached = [one for one in own if one["steps"] is not None]
        best = min(reached, key=lambda one: one["steps"], default=None)
        said.append(
            f"{name} not at all" if best is None
            else f"{name} {best['steps']:g} with {_size(best, batch_size)}"
        )  # fmt: skip
    return f"The fewest steps to the target: {', '.join(said)}"


def moves_of_all(moves: Sequence[Row], called: Callable[[Row], str], size: str) -> str:
    """Whose best rate stays from the smallest network to the largest, and where others' go.

    A rate stays where it lies in the range of the largest network's best.

    Args:
      moves: as :func:`nf_resnets.plotting.transfer.transfer_figure` takes them.
      called: ``called(group)`` names the curve of a group.
      size: what the sizes are, such as ``"depth"``.

    Example:
      >>> from nf_resnets import sweep
      >>> moves = [sweep.Move({}, depth, "train_loss", best=0.25, low=0.25, high=0.5)
      ...          for depth in (10, 34)]
      >>> moves_of_all([vars(move) for move in moves], lambda group: "Fixup", "depth")
      'From depth 10 to 34 the best rate stays for Fixup'
    """
    sizes = {move["size"] for move in moves}
    first, last = min(sizes), max(sizes)
    ends: dict[str, dict[float, Row]] = {}
    for move in moves:
        ends.setdefault(called(move["group"]), {})[move["size"]] = move
    moved: dict[str, list[str]] = {}
    lost = []
    for name, own in ends.items():
        small, large = own.get(first), own.get(last)
        if first == last or not small or not large or small["best"] is None:
            continue
        if large["best"] is None:
            lost.append(name)
        elif large["low"] <= small["best"] <= large["high"]:
            moved.setdefault("stays", []).append(name)
        else:
            factor = large["best"] / small["best"]
            verb = "rises" if factor > 1 else "falls"
            moved.setdefault(f"{verb} {max(factor, 1 / factor):.3g}-fold", []).append(name)
    words = [
        f"{said} for {listed(moved[said], quote=True)}"
        for said in sorted(moved, key="stays".__ne__)
    ]
    said = []
    if words:
        said.append(f"from {size} {first:,} to {last:,} the best rate {', '.join(words)}")
    if lost:
        said.append(f"no run of {listed(lost, quote=True)} finishes at {size} {last:,}")
    if not said:
        return f"No best rate is known at two sizes, to say how it moves with the {size}"
    title = "; ".join(said)
    return title[0].upper() + title[1:]


def best_at(optima: Sequence[Row], called: Callable[[Row], str], size: str) -> str:
    """Whose best run of the largest networks is the best, whose the next, and who has none.

    Args:
      optima: as :func:`best_of_all` takes them.
      called: ``called(group)`` names the curve of a group.
      size: the field of the size in ``group``, such as ``"depth"``.
    """
    largest = max(one["group"][size] for one in optima)
    metric = optima[0]["metric"]
    label, factor, more_is_better = METRICS[metric]
    words, _, unit = label.partition(" (")
    own = [one for one in optima if one["group"][size] == largest and one["metric"] == metric]
    found = sorted(
        (one for one in own if one["best"] is not None),
        key=lambda one: -one["mean"] if more_is_better else one["mean"],
    )
    if not found:
        return f"No run finished at {size} {largest:,}"
    said = [
        f"{_measured(factor * one['mean'], unit.rstrip(')'))} with {quoted(called(one['group']))} "
        f"(rate {power_label(one['best'])})"
        for one in found[:2]
    ]
    end = "highest" if more_is_better else "lowest"
    title = f"At {size} {largest:,} the {end} {words} is {', the next '.join(said)}"
    lost = [called(one["group"]) for one in own if one["best"] is None]
    return title + (f"; no run of {listed(lost, quote=True)} finishes" if lost else "")


def largest_effects(isolations: Sequence[Row]) -> str:
    """How far the first metric moves with each setting, the others at their best.

    Args:
      isolations: as :func:`nf_resnets.plotting.isolation.isolation_figure` takes them.
    """
    metric = isolations[0]["metric"]
    label, factor, _ = METRICS[metric]
    spans: dict[str, float] = {}
    for one in isolations:
        means = [factor * best["mean"] for best in one["best"] if best is not None]
        if one["metric"] == metric and means:
            name = "learning rate" if one["field"] == "peak_lr" else one["field"].replace("_", " ")
            spans[name] = max(spans.get(name, 0.0), max(means) - min(means))
    if not spans:
        return "No run finished"
    unit = " points" if factor == 100 else ""
    said = [
        f"{_measured(span, unit)} with the {name}"
        for name, span in sorted(spans.items(), key=lambda item: -item[1])
    ]
    words = label.partition(" (")[0]
    return f"The best {words} of a scheme moves by up to {listed(said)}"


def quoted(name: str) -> str:
    """A name, in quotation marks where it has a comma that could be one of a list."""
    return f"“{name}”" if "," in name else name


def listed(names: Sequence[str], *, quote: bool = False) -> str:
    """Names in a list.

    >>> listed(["a"]), listed(["a", "b, c", "d"], quote=True)
    ('a', 'a, “b, c” and d')
    """
    names = [quoted(name) if quote else name for name in names]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def rate_range(one: Row, power: Callable[[float], str] = power_label) -> str:
    """The best rate of an optimum with the range of rates as good, if that is wider."""
    best, low, high = (power(one[name]) for name in ("best", "low", "high"))
    return best if low == high else f"{best} ({low} to {high})"


def _measured(value: float, unit: str) -> str:
    return f"{value:.1f}{unit}" if unit else f"{value:.3g}"


def _size(one: Row, batch_size: str) -> str:
    size = one["group"].get(batch_size)
    return "any batch size" if size is None else f"B = {size}"


__all__ = [
    "bearable", "best_at", "best_of_all", "fewest_steps", "growth", "growth_of_all",
    "largest_effects", "listed", "lowest_end", "moves_of_all", "quoted",
]  # fmt: skip
