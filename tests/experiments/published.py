"""What the papers say of each experiment's recipe, typed from them, and what they leave open.

Each entry is ``name: (value, where it is published)``. Where nothing is published, the place begins
with ``ours``, and the experiment's docstring says so; the number stands here so that it does not
change unnoticed. Epochs and rates are in the papers' units.

Sources. *Fixup*: Zhang, Dauphin, Ma, ICLR 2019, by section, table, figure or appendix. *code*: its
authors' published code. *WRN*: Zagoruyko, Komodakis, BMVC 2016. *Mixup*: Zhang et al., ICLR 2018.
*Cutout*: DeVries, Taylor, 2017. *SkipInit*: De, Smith, NeurIPS 2020, v1 its first arXiv version,
*SkipInit feedback* its author feedback. *RescaleNet*: Shao et al., NeurIPS 2020, *feedback* its
author feedback, *scripts* its authors' published training scripts. *LSUV*: Mishkin, Matas, ICLR
2016.
"""

DEFAULTS = "Fixup 4.2, 'default hyper-parameters': He et al., CVPR 2016, section 4.2"
WRN = "WRN section 3, which Fixup 4.1 and C.2 refer to as the default"
PROTOCOL = "SkipInit v1, appendix on CIFAR-10"
SCRIPTS = "RescaleNet scripts"

# The augmentation of CIFAR-10: 4 pixels of padding, a random crop, a flip.
_CIFAR = {
    "padding": (4, "Fixup code; He et al., CVPR 2016, section 4.2"),
    "flip": (True, "Fixup code; He et al., CVPR 2016, section 4.2"),
}
_IMAGENET = {
    "images.dataset": ("imagenet2012", "Fixup 4.2; SkipInit v1, table 3; RescaleNet feedback"),
    "images.size": (224, "the usual crop"),
    "images.short_side": (256, "the usual test"),
    "images.lowest_area": (0.08, "the usual crop, Szegedy et al., CVPR 2015"),
    "images.flip": (True, "the usual crop"),
    "images.most": (0, "all images"),
    "stem_channels": (64, "He et al., CVPR 2016, table 1"),
    "steps": (None, "the epochs"),
    "momentum": (0.9, "Goyal et al., 2017; Fixup code; RescaleNet scripts"),
    "weight_decay": (1e-4, "Goyal et al., 2017; Fixup code; RescaleNet scripts"),
}
_TABLE_OF_RATES = {
    "dataset": ("cifar10", PROTOCOL),
    "log2_rates": ((0, -1, -2, -3, -4, -5, -6), "ours: powers of two, the best from 2^-5 to 2^-1"),
    "extend": (0, "ours"),
    "best": ("strict", "ours"),
    "seeds": ((0, 1, 2, 3, 4), "ours: 'several seeds'"),
    "width": (2, "SkipInit v1, table 1: WRN-n-2"),
    "stem_channels": (16, WRN),
    "batch_size": (128, PROTOCOL),
    "steps": (200 * 390, PROTOCOL + ": 200 epochs of 50,000 // 128 steps"),
    "momentum": (0.9, PROTOCOL),
    "weight_decay": (5e-4, PROTOCOL),
    "bn_groups": (128 // 64, PROTOCOL + ": ghost batches of 64"),
    "bn_estimate_batches": (0, "the running statistics"),
    **_CIFAR,
    "remat_from": (5000, "ours: memory"),
    "eval_batch_size": (500, "ours: memory"),
}
_MIXUP_AND_CUTOUT = {
    "batch_size": (128, WRN),
    "momentum": (0.9, WRN),
    "weight_decay": (5e-4, WRN),
    "scalar_factor": (0.1, "Fixup 4.2"),
    "mixup": (1.0, "Mixup section 3.2"),
    "bn_estimate_batches": (0, "the running statistics"),
}

RECIPES = {
    "fixup_fig3_depth": {
        "dataset": ("cifar10", "Fixup figure 3"),
        "depths": ((10, 34, 100, 304, 1000, 10_000), "Fixup figure 3: to 10,000; the others ours"),
        "schemes": (
            ("fixup", "skipinit", "batchnorm", "sqrt_half", "lsuv", "alpha_one", "skipinit_slow"),
            "Fixup figure 3; skipinit and alpha_one ours",
        ),
        "seeds": ((0,), "ours"),
        "width": (1, "Fixup 4.1"),
        "stem_channels": (16, WRN),
        "batch_size": (128, "Fixup 4.1"),
        "batch_size_from_10000_layers": (64, "Fixup 4.1"),
        "steps": (None, "Fixup 4.1: the first epoch"),
        "learning_rate": (0.1, "Fixup 4.1"),
        "momentum": (0.9, f"{WRN}, there Nesterov's"),
        "weight_decay": (5e-4, "Fixup 4.1"),
        "scalar_factor": (0.1, "Fixup code; Fixup 4.2 only with mixup"),
        "slow_alpha": (False, "SkipInit: alpha has the rate of all others"),
        "bn_groups": (1, "one batch"),
        "bn_estimate_batches": (0, "the running statistics"),
        "second_test_batches": (8, "ours, beside the running statistics"),
        "one_seed_from": (None, "one seed anyway"),
        "deepest": (None, "all schemes"),
        **_CIFAR,
        "remat_from": (5000, "ours: memory"),
        "eval_batch_size": (500, "ours: memory"),
    },
    "fixup_fig4_ablation": {
        "dataset": ("cifar10", "Fixup figure 4"),
        "depth": (110, "Fixup figure 4"),
        "variants": (
            ("batchnorm", "fixup", "no_bias", "tenth", "tenfold", "no_branches"),
            "Fixup C.1",
        ),
        "seeds": ((0,), "ours"),
        "stem_channels": (16, "He et al., CVPR 2016, section 4.2"),
        "batch_size": (128, "Fixup figure 4"),
        "steps": (3 * 390, "Fixup figure 4: 3 epochs"),
        "learning_rate": (0.1, DEFAULTS),
        "momentum": (0.9, DEFAULTS),
        "weight_decay": (1e-4, DEFAULTS),
        "scalar_factor": (0.1, "Fixup code; Fixup 4.2 only with mixup"),
        "bn_estimate_batches": (0, "the running statistics"),
        **_CIFAR,
        "window": (10, "Fixup figure 4: 10-step moving average"),
    },
    "fixup_table1_resnet110": {
        "dataset": ("cifar10", "Fixup table 1"),
        "depth": (110, "Fixup table 1"),
        "variants": (
            ("batchnorm", "fixup", "xavier_tenth", "xavier_hundredth"),
            "Fixup table 1 and 4.2",
        ),
        "seeds": ((0, 1, 2, 3, 4), "Fixup table 1: mean/median of 5 runs"),
        "stem_channels": (16, "He et al., CVPR 2016, section 4.2"),
        "steps": (None, "the epochs"),
        "points": (200, "ours: of the figure"),
        "recipe.learning_rate": (0.1, DEFAULTS),
        "recipe.batch_size": (128, DEFAULTS),
        "recipe.epochs": (200, "Fixup code"),
        "recipe.drops": ((100 / 200, 150 / 200), "Fixup code: epochs 100 and 150"),
        "recipe.factor": (0.1, DEFAULTS),
        "recipe.momentum": (0.9, DEFAULTS),
        "recipe.weight_decay": (1e-4, DEFAULTS),
        "recipe.scalar_factor": (0.1, "Fixup 4.2; code"),
        **{f"recipe.{name}": entry for name, entry in _CIFAR.items()},
        "recipe.mixup": (0.0, "Fixup table 1"),
        "recipe.cutout": (0, "Fixup table 1"),
        "recipe.bn_estimate_batches": (0, "the running statistics"),
    },
    "fixup_table2_imagenet": {
        **_IMAGENET,
        "epochs": (100, "Fixup 4.2: ResNet-50"),
        "depths": ((50, 101), "Fixup table 2"),
        "variants": (
            (
                "batchnorm",
                "batchnorm_mixup",
                "groupnorm_mixup",
                "xavier",
                "fixup",
                "fixup_mixup",
            ),
            "Fixup table 2",
        ),
        "seeds": ((0,), "ours"),
        "batch_size": (256, "Fixup code"),
        "learning_rate": (0.1, "Fixup code"),
        "drops": ((30 / 100, 60 / 100, 90 / 100), "Fixup code: every 30 epochs"),
        "scalar_factor": (0.1, "Fixup 4.2, with mixup; code"),
        "slice_size": (32, "Goyal et al., 2017, section 2.3: 32 images a GPU"),
        "tests": (False, "ours: with --tests as figures 5 and 6"),
    },
    "fixup_table3_translation": {
        "dataset": ("iwslt14_translate/de-en", "Fixup table 3: IWSLT DE-EN"),
        "variants": (
            ("layernorm", "layernorm_pre", "fixup", "plain"),
            "Fixup table 3 and 4.3; layernorm_pre and plain ours",
        ),
        "seeds": ((0,), "ours"),
        "source": (None, "the first of de-en"),
        "train_pairs": (None, "all"),
        "test_pairs": (None, "all"),
        "vocabulary": (10_000, "fairseq's preparation of IWSLT'14"),
        "joint": (True, "ours: the authors' has two dictionaries"),
        "byte_fallback": (False, "ours"),
        "num_layers": (6, "fairseq transformer_iwslt_de_en"),
        "d_model": (512, "fairseq transformer_iwslt_de_en"),
        "num_heads": (4, "fairseq transformer_iwslt_de_en"),
        "d_ff": (1024, "fairseq transformer_iwslt_de_en"),
        "max_length": (256, "ours"),
        "max_tokens": (4000, "Fixup code: --max-tokens 4000"),
        "steps": (200_000, "Fixup 4.3: 200k updates; the code has --max-update 226000"),
        "learning_rate": (5e-4, "Fixup code: --lr 0.0005"),
        "warmup_steps": (4000, "Fixup code: --warmup-updates 4000"),
        "dropout": (0.5, "Fixup 4.3: 0.5 on IWSLT"),
        "label_smoothing": (0.1, "Fixup code: --label-smoothing 0.1"),
        "scalar_factor": (1.0, "Fixup code for translation: one rate for all"),
        "weight_decay": (1e-4, "Fixup code: --weight-decay 0.0001"),
        "beam": (5, "fairseq's recipe for IWSLT'14"),
        "alpha": (1.0, "fairseq's default"),
        "offset": (0.0, "fairseq's length penalty"),
        "looks": (10, "ours"),
        "look_pairs": (200, "ours"),
        "window": (100, "ours: of the figure"),
    },
    "fixup_table4_regularized": {
        "parts": (("cifar10", "svhn"), "Fixup table 4"),
        "variants": (("batchnorm_regularized", "fixup_regularized"), "Fixup table 4"),
        "seeds": ((0,), "ours"),
        "steps": (None, "the epochs"),
        "points": (200, "ours: of the figure"),
        "networks.cifar10.dataset": ("cifar10", "Fixup table 4"),
        "networks.cifar10.depth": (40, "Fixup C.2: WideResNet-40-10"),
        "networks.cifar10.width": (10, "Fixup C.2: WideResNet-40-10"),
        "networks.cifar10.stem_channels": (16, WRN),
        "networks.cifar10.recipe.learning_rate": (0.1, WRN),
        "networks.cifar10.recipe.epochs": (200, WRN),
        "networks.cifar10.recipe.drops": ((60 / 200, 120 / 200, 160 / 200), WRN),
        "networks.cifar10.recipe.factor": (0.2, WRN),
        "networks.cifar10.recipe.cutout": (16, "Cutout section 4.3: 16 x 16 on CIFAR-10"),
        **{
            f"networks.cifar10.recipe.{name}": entry
            for name, entry in (_MIXUP_AND_CUTOUT | _CIFAR).items()
        },
        "networks.svhn.dataset": ("svhn_extra", "WRN section 3: with the extra images"),
        "networks.svhn.depth": (16, "Fixup C.2: WideResNet-16-12"),
        "networks.svhn.width": (12, "Fixup C.2: WideResNet-16-12"),
        "networks.svhn.stem_channels": (16, WRN),
        "networks.svhn.recipe.learning_rate": (0.01, WRN),
        "networks.svhn.recipe.epochs": (160, WRN),
        "networks.svhn.recipe.drops": ((80 / 160, 120 / 160), WRN),
        "networks.svhn.recipe.factor": (0.1, WRN),
        "networks.svhn.recipe.padding": (0, "WRN section 3: no augmentation"),
        "networks.svhn.recipe.flip": (False, "WRN section 3: no augmentation"),
        "networks.svhn.recipe.cutout": (20, "Cutout section 4.3: 20 x 20 on SVHN"),
        **{f"networks.svhn.recipe.{name}": entry for name, entry in _MIXUP_AND_CUTOUT.items()},
    },
    "skipinit_table1_depth": {
        "depths": ((16, 100, 1000), "SkipInit v1, table 1"),
        "lines": (
            (
                "batchnorm",
                "alpha_rsqrt_depth",
                "skipinit",
                "alpha_one",
                "sqrt_half",
                "skipinit_no_bias",
                "skipinit_no_l2",
            ),
            "SkipInit v1, table 1; skipinit_no_bias ours",
        ),
        **_TABLE_OF_RATES,
    },
    "skipinit_table2_placement": {
        "depths": ((100, 1000), "SkipInit feedback: 1000-2; v1: 100-2"),
        "lines": (
            (
                "batchnorm",
                "batchnorm_last",
                "batchnorm_sqrt_half",
                "batchnorm_half",
                "batchnorm_quarter",
                "batchnorm_merge",
                "skipinit",
            ),
            "SkipInit feedback, 1 to 3; 'alpha <= sqrt(1/2)', of which a half and a quarter ours",
        ),
        **_TABLE_OF_RATES,
    },
    "skipinit_lr_batch": {
        "axes.scheme": (
            ("batchnorm", "skipinit", "regularized_skipinit", "fixup"),
            "SkipInit section 5",
        ),
        "axes.batch_size": ((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), "ours: powers of two"),
        "axes.peak_lr": (tuple(2.0**k for k in range(-9, 4)), "ours: powers of two"),
        "axes.seed": ((0, 1, 2, 3, 4), "ours: 'several seeds'"),
        "base.dataset": ("cifar10", PROTOCOL),
        "base.model": ("wrn-16-4", "SkipInit section 4: 16-4 Wide-ResNet"),
        "base.epochs": (200.0, PROTOCOL),
        "base.padding": _CIFAR["padding"],
        "base.flip": _CIFAR["flip"],
        "num_steps": (200 * 390, PROTOCOL + ": 200 epochs at batch 128"),
    },
    "skipinit_imagenet": {
        **_IMAGENET,
        "epochs": (90, "ours: not known"),
        "batches": ((256, 1024, 4096), "SkipInit v1, table 3"),
        "rates": ((0.05, 0.1, 0.2), "ours: around Goyal et al.'s 0.1 at batch 256"),
        "extend": (0, "ours"),
        "best": ("strict", "ours"),
        "depth": (50, "SkipInit v1, table 3: ResNet-50"),
        "variants": (
            ("batchnorm", "fixup", "skipinit", "regularized_skipinit"),
            "SkipInit v1, table 3",
        ),
        "seeds": ((0,), "ours"),
        "warmup_epochs": (5.0, "Goyal et al., 2017, section 2.2"),
        "scalar_factor": (0.1, "Fixup code"),
        "slice_size": (64, "SkipInit: ghost batches of 64"),
        "micro_batch": (1024, "ours: memory"),
    },
    "rescale_imagenet": {
        **_IMAGENET,
        "epochs": (100 + 5, SCRIPTS),
        "networks": (("resnet50", "resnet101", "vgg19"), "RescaleNet feedback; scripts"),
        "variants": (
            ("rescalenet", "uncalibrated", "batchnorm", "plain"),
            "RescaleNet section 5; uncalibrated and plain ours",
        ),
        "seeds": ((0, 1, 2, 3, 4, 5), "RescaleNet feedback: mean and std from 6 runs"),
        "classifier": ((4096, 4096), SCRIPTS),
        "pool_size": (7, SCRIPTS),
        "batch_size": (1024, SCRIPTS),
        "micro_batch": (256, "ours: memory"),
        "rate": (0.1, SCRIPTS),
        "warmup_epochs": (5.0, SCRIPTS),
        "drops": ((35 / 105, 65 / 105, 95 / 105), SCRIPTS + ": 30, 60, 90 after the warm-up"),
        "conv_dropout": (0.03, SCRIPTS),
        "dropout": (0.3, SCRIPTS),
        "slice_size": (32, "ours: images a GPU"),
        "published.vgg_rate": (0.01, SCRIPTS),
        "published.vgg_drops": ((65 / 105, 95 / 105), SCRIPTS + ": 60, 90 after the warm-up"),
        "published.vgg_dropout": (0.5, SCRIPTS),
    },
    "rescale_multipliers": {
        "dataset": ("cifar10", "ours: the feedback's network was trained on ImageNet"),
        "depth": (110, "ours"),
        "steps": (200 * 390, "ours: 200 epochs"),
        "look_every": (390, "ours: an epoch"),
        "learning_rate": (0.1 * 128 / 256, SCRIPTS + ": 0.1 B / 256"),
        "weight_decay": (5e-4, "ours: the scripts have 1e-4 on ImageNet"),
        "variants": (("multipliers", "without"), "RescaleNet feedback"),
        "seeds": ((0,), "ours"),
        "stem_channels": (16, "He et al., CVPR 2016, section 4.2"),
        "batch_size": (128, "ours"),
        "momentum": (0.9, SCRIPTS),
        **_CIFAR,
    },
    "rescale_variance": {
        "dataset": ("cifar10", "ours: the feedback has ImageNet"),
        "depth": (101, "RescaleNet feedback: Rescale101"),
        "stem_channels": (64, "He et al., CVPR 2016, table 1"),
        "image_size": (224, "the usual crop"),
        "batch_size": (128, "RescaleNet feedback: 'a batch size of 128'"),
        "seeds": ((0, 1, 2, 3, 4), "ours"),
    },
}
"""Of each experiment all settings of ``--scale paper``, flattened."""

WMT = {
    "dataset": ("wmt14_translate/de-en", "ours: Fixup 4.3 has WMT'16 en-de"),
    "source": ("en", "Fixup table 3: EN-DE"),
    "vocabulary": (32_000, "Ott et al., 2018, section 3"),
    "d_model": (1024, "Ott et al., 2018, section 3: the big Transformer"),
    "num_heads": (16, "Ott et al., 2018, section 3: the big Transformer"),
    "d_ff": (4096, "Ott et al., 2018, section 3: the big Transformer"),
    "max_tokens": (32_000, "ours: not known"),
    "dropout": (0.4, "Fixup 4.3: 0.4 on WMT"),
    "weight_decay": (0.0, "ours: not known"),
    "beam": (4, "Ott et al., 2018, section 3"),
    "alpha": (0.6, "Ott et al., 2018, section 3"),
}
"""What ``--scale paper_wmt`` of table 3 changes."""

RESULTS = {
    "fixup_table1_resnet110": (
        {"batchnorm": {20: 8.75, 110: 6.61}, "fixup": {110: 7.24}, "xavier_hundredth": {110: 7.78}},
        "Fixup table 1; He et al. 2016, table 6",
    ),
    "fixup_table2_imagenet": (
        {
            "batchnorm": {50: 23.6, 101: 22.0},
            "batchnorm_mixup": {50: 23.3, 101: 20.8},
            "groupnorm_mixup": {50: 23.9, 101: 21.4},
            "xavier": {50: 31.5},
            "fixup": {50: 27.6},
            "fixup_mixup": {50: 24.0, 101: 21.4},
        },
        "Fixup table 2",
    ),
    "fixup_table4_regularized": (
        {
            "batchnorm": {"cifar10": 3.8, "svhn": 1.5},
            "batchnorm_regularized": {"cifar10": 2.5, "svhn": 1.4},
            "fixup_regularized": {"cifar10": 2.3, "svhn": 1.4},
        },
        "Fixup table 4",
    ),
}
"""Published test errors (%) that stand beside ours."""

ACCURACIES = {
    "skipinit_imagenet": (
        {
            "batchnorm": {256: 75.0, 1024: 74.9, 4096: 74.9},
            "fixup": {256: 74.8, 1024: 74.6, 4096: 73.0},
            "skipinit": {256: 74.9, 1024: 74.6, 4096: 70.8},
            "regularized_skipinit": {256: 75.6, 1024: 75.5, 4096: 72.7},
        },
        "SkipInit v1, table 3",
    ),
    "rescale_imagenet": ({"resnet50": 76.57, "resnet101": 77.55}, "RescaleNet feedback, R3"),
}
"""Published top-1 accuracies (%) that stand beside ours."""

MIXUP = ({"batchnorm": 0.2, "groupnorm": 0.1, "fixup": 0.7, "xavier": 0.0}, "Fixup 4.2")
"""Mixup's coefficients on ImageNet, by the scheme, in the rows that have it."""

ABLATIONS = ({"tenth": 0.1, "tenfold": 10.0}, "Fixup C.1")
"""What figure 4's initialisation is multiplied by."""

WITHOUT_BIASES = (("no_bias", "tenth", "tenfold"), "Fixup C.1, options 1 to 3")
"""The variants of figure 4 that have a multiplier and no scalar biases."""

REGULARIZED = (("batchnorm_regularized", "fixup_regularized"), "Fixup table 4")
"""The lines of table 4 with mixup and cutout."""

BLOCK_FACTORS = (
    {
        "batchnorm_sqrt_half": 0.5**0.5,
        "batchnorm_half": 0.5,
        "batchnorm_quarter": 0.25,
    },
    "SkipInit feedback, 2: a factor alpha <= sqrt(1/2); a half and a quarter ours",
)
"""What skip and branch are multiplied by."""

WITHOUT_L2 = (("skipinit_no_l2",), "SkipInit v1, table 1")
"""The lines of SkipInit's tables without weight decay."""

XAVIER_RATES = ({"xavier_tenth": 0.1, "xavier_hundredth": 0.01}, "Fixup 4.2; 0.01 ours")
"""What table 1's rate is multiplied by."""

# Of a run the rate in each of the epochs named, counted from 0, and how many steps an epoch has.
_STEP = {0: 0.1, 99: 0.1, 100: 0.01, 149: 0.01, 150: 0.001, 199: 0.001}
_HALVES = {0: 1.0, 99: 1.0, 100: 1 / 2, 109: 1 / 2, 110: 1 / 4, 120: 1 / 8, 199: 2.0**-10}
RATES = {
    "fixup_table1_resnet110": (390, _STEP, "Fixup code"),
    "fixup_table4_regularized cifar10": (
        390,
        {0: 0.1, 59: 0.1, 60: 0.02, 119: 0.02, 120: 0.004, 159: 0.004, 160: 0.0008, 199: 0.0008},
        WRN,
    ),
    "fixup_table4_regularized svhn": (
        604_388 // 128,
        {0: 0.01, 79: 0.01, 80: 0.001, 119: 0.001, 120: 0.0001, 159: 0.0001},
        WRN,
    ),
    "fixup_table2_imagenet 50": (
        1_281_167 // 256,
        {0: 0.1, 29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 89: 0.001, 90: 0.0001, 99: 0.0001},
        "Fixup code: every 30 epochs",
    ),
    "skipinit_table1_depth": (390, _HALVES, PROTOCOL + ": halved every 10 epochs after half"),
    "skipinit_lr_batch": (390, _HALVES, PROTOCOL + ": halved every 10 epochs after half"),
    "skipinit_imagenet 1024": (
        1_281_167 // 1024,
        {5: 0.4, 44: 0.4, 45: 0.2, 48: 0.2, 50: 0.1, 53: 0.1, 54: 0.05, 89: 0.4 * 2.0**-10},
        "Goyal et al., 2017: 0.1 B / 256; the schedule ours, that of CIFAR-10 over 90 epochs",
    ),
    "rescale_imagenet resnet50": (
        1_281_167 // 1024,
        {5: 0.4, 34: 0.4, 35: 0.04, 64: 0.04, 65: 0.004, 94: 0.004, 95: 0.0004, 104: 0.0004},
        SCRIPTS,
    ),
    "rescale_imagenet vgg19": (
        1_281_167 // 1024,
        {5: 0.04, 64: 0.04, 65: 0.004, 94: 0.004, 95: 0.0004, 104: 0.0004},
        SCRIPTS,
    ),
}
"""The learning rate by the epoch, as the optimizer has it."""

# What a user gets without asking for anything else.
OF_USERS = {
    "nf_resnets.sweep.settings.RunSettings": {
        "momentum": (0.9, PROTOCOL),
        "weight_decay": (5e-4, PROTOCOL),
        "schedule": ("halving", PROTOCOL),
        "ghost_batch": (64, "SkipInit: ghost batches of 64"),
        "scalar_factor": (None, "the scheme's"),
        "dropout": (None, "the network's"),
        "alpha": (None, "the scheme's"),
        "branch_scale": (1.0, "the scheme's"),
        "peak_lr": (0.1, "Fixup 4.1"),
        "warmup_epochs": (0.0, PROTOCOL),
        "padding": (0, "ours: for digits"),
        "flip": (False, "ours: for digits"),
        "dataset": ("digits", "ours"),
        "model": ("wrn-16-1", "ours"),
        "scheme": ("fixup", "ours"),
        "stem_channels": (0, "the network's"),
        "batch_size": (64, "ours: for digits"),
        "micro_batch": (0, "ours"),
        "epochs": (0.0, "ours: 10"),
        "steps": (0, "ours"),
        "bn_estimate_batches": (0, "the running statistics"),
        "evaluate_every": (1, "ours"),
        "remat": (False, "ours"),
        "dtype": ("float32", "ours"),
        "optimizer": ("sgd", PROTOCOL),
        "base_model": (None, "ours"),
        "gradient_noise": (False, "ours"),
        "nesterov": (False, PROTOCOL),
        "clip_norm": (0.0, "ours: none"),
        "adaptive_clip": (0.0, "ours: none"),
        "average": (0.0, "ours: none"),
        "mixup": (0.0, "ours: none"),
        "cutout": (0, "ours: none"),
        "label_smoothing": (0.0, "ours: none"),
        "seed": (0, "ours"),
    },
    "nf_resnets.trained.fit_translation.TranslationRecipe": {
        "optimizer": ("adamw", "Vaswani 5.3: Adam"),
        "label_smoothing": (0.1, "Fixup code: --label-smoothing 0.1"),
        "layers": (2, "ours: for a CPU"),
        "channels": (64, "ours: for a CPU"),
        "heads": (4, "ours: for a CPU"),
        "vocabulary": (200, "ours: for a CPU"),
        "max_length": (64, "ours: for a CPU"),
        "steps": (600, "ours: for a CPU"),
        "max_tokens": (1500, "ours: for a CPU"),
        "learning_rate": (3e-3, "ours: for a CPU"),
        "dropout": (0.0, "ours: for a CPU"),
        "seed": (0, "ours"),
    },
    "experiments.fixup_table1_resnet110.Recipe": {
        "learning_rate": (0.1, DEFAULTS),
        "batch_size": (128, DEFAULTS),
        "epochs": (200, "Fixup code"),
        "drops": ((100 / 200, 150 / 200), "Fixup code"),
        "factor": (0.1, DEFAULTS),
        "momentum": (0.9, DEFAULTS),
        "weight_decay": (1e-4, DEFAULTS),
        "scalar_factor": (0.1, "Fixup code; Fixup 4.2 only with mixup"),
        "padding": (0, "ours"),
        "flip": (False, "ours"),
        "mixup": (0.0, "ours"),
        "cutout": (0, "ours"),
        "bn_estimate_batches": (0, "the running statistics"),
    },
}
"""Of the dataclasses that users fill in, all fields."""

OF_FUNCTIONS = {
    "nf_resnets.optim.sgd": {
        "momentum": (0.9, DEFAULTS),
        "nesterov": (False, "Fixup code"),
        "weight_decay": (0.0, "ours: to be given"),
    },
    "nf_resnets.translation.adam": {
        "b2": (0.98, "Vaswani et al., 2017, section 5.3; Fixup code: --adam-betas '(0.9, 0.98)'"),
    },
    "nf_resnets.optim.halving": {"halvings": (10, PROTOCOL)},
    "nf_resnets.optim.adaptive_clip": {"eps": (1e-3, "Brock et al., ICML 2021, section 4.1")},
    "nf_resnets.init.lsuv": {
        "tolerance": (0.1, "LSUV algorithm 1"),
        "max_passes": (10, "LSUV algorithm 1"),
    },
    "nf_resnets.init.skipinit": {"alpha": (0.0, "SkipInit section 3")},
    "nf_resnets.init.fixup": {"scale": (1.0, "Fixup section 3, rule 2")},
    "nf_resnets.models.WideResNet": {
        "dropout": (0.6, "SkipInit: 0.6 before the head on CIFAR"),
        "stem_channels": (16, WRN),
        "conv_dropout": (0.0, "ours"),
    },
    "nf_resnets.models.CifarResNet": {
        "dropout": (0.6, "SkipInit: 0.6 before the head on CIFAR"),
        "stem_channels": (16, "He et al., CVPR 2016, section 4.2"),
        "conv_dropout": (0.0, "ours"),
    },
    "nf_resnets.models.ResNet": {
        "dropout": (0.2, "SkipInit: 0.2 before the head on ImageNet"),
        "stem_channels": (64, "He et al., CVPR 2016, table 1"),
        "conv_dropout": (0.0, "ours"),
    },
    "nf_resnets.models.VGG": {
        "classifier": ((4096, 4096), "Simonyan, Zisserman, ICLR 2015, table 1"),
        "pool_size": (7, "Simonyan, Zisserman, ICLR 2015, table 1"),
        "stem_channels": (64, "Simonyan, Zisserman, ICLR 2015, table 1"),
        "dropout": (0.0, "ours: to be given"),
    },
}
"""Defaults of arguments."""

SLOW = (
    {
        "fixup": (("scalar_bias", "multiplier"), ()),
        "fixup_published": (("scalar_bias", "multiplier"), ("head",)),
    },
    0.1,
    "Fixup 4.2: 'learning rate of the scalar multiplier and bias by 10x'; in the code every "
    "parameter with 'bias' or 'scale' in its name",
)
"""Which leaves learn slowly, by the scheme: roles, and the layers whose bias vectors do; of all
other schemes none."""

CALIBRATION_IMAGES = (128, "RescaleNet feedback: 'a batch size of 128 is already good enough'")
