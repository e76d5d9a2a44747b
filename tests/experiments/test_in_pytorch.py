"""Runs of figure 3 on CIFAR-10, made again in PyTorch: equal parameters, batches and steps."""

import csv
import types
from pathlib import Path

import jax
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

import torch
import torch.nn.functional as F

from benchmarks import torch_networks
from experiments.fixup_fig3_depth import SCALES, SLOW
from nf_resnets import data, schemes, training
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.settings import make
from tests.shared_data import make_shared, needs_shared_data

ROWS = Path(__file__).parents[2] / "results" / "fixup_fig3_depth-cifar" / "rows.csv"
pytestmark = [pytest.mark.slow, needs_shared_data]


@pytest.fixture(autouse=True)
def one_thread():
    """What is so small is no faster with several, and much slower beside other work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def schemes_of_the_figure():
    """A step looks its scheme up when it is traced."""
    with schemes.registered(*SLOW):
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return data.load("cifar10", make_shared(tmp_path_factory.mktemp("data"), "cifar10"))


def run_of(dataset, scheme):
    """A run: its point, its parameters at the start, its batches and its first losses."""
    base = next(p for p in SCALES["cifar"] if p["scheme"] == scheme)
    point = base | {"model": "wrn-10-1", "seed": 0}
    task = ImageTask(lambda _: dataset)
    plan = task.plan(make(point))
    program = task.build(plan, training.make_mesh(1, 1, devices=jax.devices()[:1]))
    states = program.begin([task.start(plan)])
    params = jax.tree.map(lambda leaf: leaf[0], jax.device_get(states.params))
    losses = np.asarray(program.steps(states, [20]).curve["loss"])[0, :20]

    split = data.DeviceData.of(dataset, dataset.train)
    order = data.epoch_order(0, 0, len(dataset.train.labels))
    augmentation = task.of(plan)[1].how.augmentation

    @jax.jit
    def batch_of(step):
        return data.training_batch(split, order, 0, step, batch_size=128, augmentation=augmentation)

    return types.SimpleNamespace(
        point=point, num_steps=plan.num_steps, params=params, losses=losses, batch_of=batch_of
    )


def batch_in_torch(run, index):
    batch = run.batch_of(index)
    batch = {name: np.array(batch[name])[None] for name in ("image", "label")}
    return torch_networks.tensors(batch, "cpu")[0]


def fixup_in_torch(run):
    """The network of a run with Fixup, and its step."""
    network = torch_networks.build("wrn-10-1", run.params, "cpu")
    optimizer = torch_networks.make_optimizer(
        network, learning_rate=run.point["peak_lr"], weight_decay=run.point["weight_decay"]
    )
    return network, torch_networks.make_step(network, optimizer, torch.float32)


def test_ten_layers_with_fixup_reach_the_accuracy_of_the_row(dataset):
    run = run_of(dataset, "fixup")
    network, step = fixup_in_torch(run)
    assert run.num_steps == 390
    losses = [float(step(*batch_in_torch(run, index))) for index in range(run.num_steps)]
    # 2e-7 seen in the first 20 steps; what is rounded differently grows to 1e-3 by step 60.
    np.testing.assert_allclose(losses[:20], run.losses, rtol=1e-5)

    correct = 0
    for images, labels in zip(
        np.split(dataset.test.images, 20), np.split(dataset.test.labels, 20), strict=True
    ):
        inputs = data.normalize(images, *(np.asarray(each) for each in (dataset.mean, dataset.std)))
        with torch.no_grad():
            logits = network(torch.from_numpy(np.array(inputs)).permute(0, 3, 1, 2))
        correct += int((logits.argmax(1).numpy() == labels).sum())
    with open(ROWS, newline="") as stream:
        (row,) = (
            row
            for row in csv.DictReader(stream)
            if (row["scheme"], row["depth"], row["seed"]) == ("fixup", "10", "0")
        )
    # Rounding alone moves it: from parameters that differ by up to 3e-6, PyTorch gets 47.0, 47.8
    # and 48.5%.
    assert abs(correct / 10_000 - float(row["test_accuracy"])) < 0.03


def logits_of(leaves, images, factor):
    """WRN-10-1 as published, with BatchNorm, biases and alpha where there are such leaves."""

    def conv(name, x, stride=1):
        weight = leaves[f"{name}.weight"]
        padding = weight.shape[-1] // 2
        return F.conv2d(x, weight, leaves.get(f"{name}.bias"), stride, padding)

    def activated(name, x):
        if f"{name}.scale" in leaves:
            given = leaves[f"{name}.scale"], leaves[f"{name}.bias"]
            x = F.batch_norm(x, None, None, *given, training=True)
        return F.relu(x)

    x = conv("stem", images)
    for index in range(3):
        name, stride = f"blocks.{index}", 1 if index == 0 else 2
        h = activated(f"{name}.norm_1", x)
        if index:
            x = conv(f"{name}.shortcut", h, stride)
        h = activated(f"{name}.norm_2", conv(f"{name}.conv_1", h, stride))
        h = conv(f"{name}.conv_2", h)
        x = factor * (x + leaves.get(f"{name}.alpha", 1) * h)
    mean = activated("norm_head", x).mean((2, 3))
    return F.linear(mean, leaves["head.weight"], leaves["head.bias"])


@pytest.mark.parametrize(
    ("scheme", "factor", "alpha_rate", "rtol"),
    [
        ("skipinit", 1, 0.1, 1e-5),
        ("skipinit_slow", 1, 0.01, 1e-5),
        ("batchnorm", 1, 0.1, 1e-3),
        ("sqrt_half", 0.5**0.5, 0.1, 1e-4),
        ("lsuv", 1, 0.1, 1e-4),
        ("alpha_one", 1, 0.1, 3e-5),
    ],
)
def test_the_first_steps_of_the_other_schemes(dataset, scheme, factor, alpha_rate, rtol):
    """The tolerances are three to fifty times what is seen; rounding grows, most with BatchNorm.

    It depends on the processor: 2.4e-5 has been seen with sqrt_half, 3.4e-4 with BatchNorm, whose
    first four steps agreed to 2e-6.
    """
    run = run_of(dataset, scheme)
    leaves = torch_networks.leaves_of(run.params, (1, 1, 1))
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    groups = [
        {"params": [leaf], "lr": alpha_rate if name.endswith("alpha") else 0.1}
        for name, leaf in leaves.items()
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
    losses = []
    for index in range(10):
        images, labels = batch_in_torch(run, index)
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(leaves, images, factor), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(losses[:4], run.losses[:4], rtol=1e-5)
    np.testing.assert_allclose(losses, run.losses[:10], rtol=rtol)
