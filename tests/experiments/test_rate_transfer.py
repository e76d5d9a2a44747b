"""Best rates against depth and width: which networks are made, and what the table says."""

import math
from types import SimpleNamespace

import numpy as np

from experiments import rate_transfer, rate_transfer_transformer
from experiments.experiment import measured
from nf_resnets import schemes


def test_the_loss_is_that_of_the_last_quarter():
    measures = {"curve": {"loss": [9.0, 8.0, 3.0, None]}}
    row = measured({"model": "wrn-10-4", "measures": measures, "history": []})
    columns = rate_transfer.columns(row)
    assert columns["width"] == 4 and math.isnan(columns["train_loss"])
    row["measures"]["curve"]["loss"] = [9.0] * 6 + [3.0, 1.0]
    assert rate_transfer.columns(row)["train_loss"] == 2


def test_transformers_know_their_base():
    """CompleteP's branches at 4 layers, as those of 2 layers say."""
    experiment = rate_transfer_transformer
    sentences = SimpleNamespace(vocabulary=SimpleNamespace(target_size=20), train=None)
    point = experiment.SCALES["smoke"][0] | {"model": "transformer-2"}
    with schemes.registered(*experiment.PARAMETRIZED):
        point |= {"scheme": experiment.SCHEMES[2]}
        deep = experiment.setup(point, sentences).model
    assert (deep.num_branches, deep.scheme.title) == (10, "CompleteP with LayerNorm")
    np.testing.assert_allclose(deep.scheme.constants(10).residual, 1 / 2)
    assert deep.scheme.constants(5).residual.tolist() == [1.0] * 5
