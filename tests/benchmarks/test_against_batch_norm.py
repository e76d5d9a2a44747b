"""That the twins are twins, and the shape of the rows."""

import pytest

from benchmarks import against_batch_norm
from benchmarks.cases import Case

# With images enough for their activations to be most of the memory.
SMALL = Case("cifar-resnet-8", batch=32, side=16)


@pytest.mark.slow
def test_the_rows_compare_both_schemes_with_fixup():
    rows = list(against_batch_norm.compare(SMALL, rounds=2))
    found = {row.compared: row for row in rows}
    assert set(found) == {
        f"{measure}, {scheme} / fixup"
        for measure in ("step time", "memory of a step")
        for scheme in ("batchnorm", "skipinit")
    }
    assert all(row.ratio.value > 0 and row.held is None for row in rows)
    assert {row.what for row in rows} == {"cifar-resnet-8, 32 x 16x16"}
    # BatchNorm keeps the normalized activations beside the others for its backward pass.
    assert found["memory of a step, batchnorm / fixup"].ratio.value > 1
