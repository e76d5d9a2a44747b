"""The programs of a sweep: shared, let go of, timed, stored."""

from __future__ import annotations

import concurrent.futures
import gc
import time
import weakref
from types import SimpleNamespace

import jax
import pytest

from nf_resnets.sweep.engine import Programs, store_programs
from nf_resnets.training.run import Plan
from tests.training.small import Log


class Built:
    slots = 1


PLAN = Plan({"seed": 0}, "a run", 100, 10, program="p")


def test_threads_share_a_program_which_is_kept_for_as_long_as_one_uses_it():
    built = []

    def build(plan, mesh, *, runs_per_device):
        time.sleep(0.05)
        built.append(runs_per_device)
        return Built()

    shared = Programs(SimpleNamespace(build=build), None, Log())
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        one, *others = pool.map(lambda _: shared.get(PLAN, 1), range(3))
    assert others == [one, one] and built == [1] and shared.compiled == 1
    gone = weakref.ref(one)
    del others
    assert shared.get(PLAN, 1) is one
    del one
    gc.collect()
    assert gone() is None
    # For other runs on a device it is another program; the first one is compiled anew.
    shared.get(PLAN, 2)
    shared.get(PLAN, 1)
    assert built == [1, 2, 1]


@pytest.mark.parametrize(
    ("platform", "chosen", "stored"),
    [("cpu", None, None), ("gpu", None, "compiled"), ("tpu", "mine", "mine")],
)
def test_programs_are_stored_but_on_a_cpu(
    monkeypatch, tmp_path, as_before, platform, chosen, stored
):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform=platform)])
    jax.config.update("jax_compilation_cache_dir", chosen and str(tmp_path / chosen))
    store_programs(tmp_path)
    assert jax.config.jax_compilation_cache_dir == (stored and str(tmp_path / stored))
