"""Plain optima to draw."""


def rate(rate, mean, std=0.01, diverged=0):
    n = 0 if mean is None else 3 - diverged
    return {"rate": rate, "n": n, "mean": mean, "std": None if mean is None else std,
            "diverged": diverged}  # fmt: skip


def group(scheme, size, rates, metric="test_accuracy", at_edge=None):
    """An optimum of rates, of which the best is the whole range of rates as good."""
    alive = [one for one in rates if one["mean"] is not None]
    pick = max if metric.endswith("accuracy") else min
    best = pick(alive, key=lambda one: one["mean"]) if alive else {}
    return {
        "group": {"scheme": scheme, "batch_size": size}, "metric": metric, "rates": rates,
        "best": best.get("rate"), "mean": best.get("mean"), "std": best.get("std"),
        "low": best.get("rate"), "high": best.get("rate"), "at_edge": at_edge,
        "passed_over": (),
    }  # fmt: skip
