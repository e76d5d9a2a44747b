"""That the twins are twins, and the shape of the rows."""

import pytest

from benchmarks import against_batch_norm
from benchmarks.cases import Case

TINY = Case("cifar-resnet-8", batch=4, side=8)
# With images enough for their activations to be most of the memory.
SMALL = Case("cifar-resnet-8", batch=32, side=16)


@pytest.mark.slow
def test_the_rows_compare_both_schemes_with_fixup():
    rows = list(against_batch_norm.compare(SMALL, steps=2, rounds=2, compilations=1))
    found = {row.compared: row for row in rows}
    assert set(found) == {
        f"{measure}, {scheme} / fixup"
        for measure in ("step time", "memory of a step", "compile time of a step")
        for scheme in ("batchnorm", "skipinit")
    }
    assert all(row.ratio.value > 0 and row.held is None for row in rows)
    assert {row.what for row in rows} == {"cifar-resnet-8, 32 x 16x16"}
    # BatchNorm keeps the normalised activations beside the others for its backward pass.
    assert found["memory of a step, batchnorm / fixup"].ratio.value > 1


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_an_error(monkeypatch):
    twins = {"fixup": TINY}
    programs, _ = against_batch_norm.compile_in_turn(twins, 1, 1)
    batches = against_batch_norm.cases.make_batches(TINY)
    batches["image"][:] = float("nan")
    monkeypatch.setattr(against_batch_norm.cases, "make_batches", lambda *_: batches)
    with pytest.raises(RuntimeError, match="cifar-resnet-8 fixup.*expected finite ones"):
        against_batch_norm.step_in_turn(twins, programs, 1, 1)


def test_the_target_is_for_the_large_networks_on_a_gpu():
    networks = {case.network for case in against_batch_norm.ON_GPU}
    assert set(against_batch_norm.WITH_TARGET) <= networks
    assert not set(against_batch_norm.WITH_TARGET) & {c.network for c in against_batch_norm.ON_CPU}
