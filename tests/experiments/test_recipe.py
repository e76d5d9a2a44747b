"""The recipe's steps and drops."""

import dataclasses

from experiments import fixup_table1_resnet110 as table1
from experiments import fixup_table4_regularized as table4
from experiments.recipe import Recipe, boundaries, num_steps
from nf_resnets import data


def test_the_published_epochs():
    # 390 steps an epoch on CIFAR-10, 604,388 // 128 on SVHN with its extra images.
    assert boundaries(table1.SCALES["paper"].recipe, 200 * 390) == (100 * 390, 150 * 390)
    parts = table4.SCALES["paper"].networks
    cifar, svhn = parts["cifar10"].recipe, parts["svhn"].recipe
    assert boundaries(cifar, 200 * 390) == (60 * 390, 120 * 390, 160 * 390)
    assert boundaries(svhn, 160 * 4_721) == (80 * 4_721, 120 * 4_721)
    assert (cifar.factor, svhn.factor) == (0.2, 0.1)
    assert num_steps(Recipe(batch_size=64, epochs=3), data.load("digits")) == 3 * 22


def test_a_variant_without_mixup_and_cutout_differs_in_these_alone():
    part = table4.CIFAR10
    plain = table4.recipe_of(part, table4.VARIANTS["fixup"])
    assert (plain.mixup, plain.cutout) == (0.0, 0)
    assert dataclasses.replace(plain, mixup=1.0, cutout=16) == part.recipe
    assert table4.recipe_of(part, table4.VARIANTS["fixup_regularized"]) == part.recipe
