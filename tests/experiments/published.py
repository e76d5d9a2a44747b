"""What the papers say of each experiment's recipe, typed from them.

Each entry is ``name: (value, where it is published)``. Epochs and rates are in the papers' units.

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
    "padding": ((4,), "Fixup code; He et al., CVPR 2016, section 4.2"),
    "flip": ((True,), "Fixup code; He et al., CVPR 2016, section 4.2"),
}
_SKIPINIT = {
    "dataset": (("cifar10",), PROTOCOL),
    "steps": ((78000,), "SkipInit v1, appendix on CIFAR-10: 200 epochs of 50,000 // 128 steps"),
    "batch_size": ((128,), PROTOCOL),
    "stem_channels": ((16,), WRN),
    **_CIFAR,
}
_IMAGENET = {
    "dataset": (("imagenet2012",), "Fixup 4.2; SkipInit v1, table 3; RescaleNet feedback"),
    "lowest_area": ((0.08,), "the usual crop, Szegedy et al., CVPR 2015"),
    "stem_channels": ((64,), "He et al., CVPR 2016, table 1"),
    "weight_decay": ((0.0001,), "Goyal et al., 2017; Fixup code; RescaleNet scripts"),
}

RECIPES = {
    "fixup_fig3_depth": {
        "dataset": (("cifar10",), "Fixup figure 3"),
        "epochs": ((1.0,), "Fixup 4.1: the first epoch"),
        "batch_size": ((128, 64), "Fixup 4.1"),
        "stem_channels": ((16,), WRN),
        "peak_lr": ((0.1,), "Fixup 4.1"),
        "weight_decay": ((0.0005,), "Fixup 4.1"),
        "scalar_factor": ((0.1,), "Fixup code; Fixup 4.2 only with mixup"),
        **_CIFAR,
        "model": (
            ("wrn-10-1", "wrn-34-1", "wrn-100-1", "wrn-304-1", "wrn-1000-1", "wrn-10000-1"),
            "Fixup figure 3: to 10,000; the others ours",
        ),
        "scheme": (
            ("fixup", "skipinit", "batchnorm", "sqrt_half", "lsuv", "alpha_one", "skipinit_slow"),
            "Fixup figure 3; skipinit and alpha_one ours",
        ),
    },
    "fixup_fig4_ablation": {
        "dataset": (("cifar10",), "Fixup figure 4"),
        "model": (("cifar-resnet-110",), "Fixup figure 4"),
        "steps": ((1170,), "Fixup figure 4: 3 epochs"),
        "batch_size": ((128,), "Fixup figure 4"),
        "peak_lr": ((0.1,), DEFAULTS),
        "weight_decay": ((0.0001,), DEFAULTS),
        "scalar_factor": ((0.1,), "Fixup code; Fixup 4.2 only with mixup"),
        **_CIFAR,
        "stem_channels": ((16,), "He et al., CVPR 2016, section 4.2"),
        "scheme": (
            ("batchnorm", "fixup", "no_bias", "tenth", "tenfold", "no_branches"),
            "Fixup C.1",
        ),
    },
    "fixup_table1_resnet110": {
        "dataset": (("cifar10",), "Fixup table 1"),
        "model": (("cifar-resnet-110",), "Fixup table 1"),
        "epochs": ((200.0,), "Fixup code"),
        "batch_size": ((128,), DEFAULTS),
        "stem_channels": ((16,), "He et al., CVPR 2016, section 4.2"),
        "peak_lr": ((0.1, 0.01, 0.001), "Fixup 4.2; 0.01 ours"),
        "drops": (("0.5 0.75",), "Fixup code: epochs 100 and 150"),
        "weight_decay": ((0.0001,), DEFAULTS),
        "scalar_factor": ((0.1,), "Fixup 4.2; code"),
        **_CIFAR,
        "scheme": (("batchnorm", "fixup", "xavier"), "Fixup table 1 and 4.2"),
        "seed": ((0, 1, 2, 3, 4), "Fixup table 1: mean/median of 5 runs"),
    },
    "fixup_table4_regularized": {
        "dataset": (
            ("cifar10", "svhn_extra"),
            "Fixup table 4; WRN section 3: with the extra images",
        ),
        "model": (("wrn-40-10", "wrn-16-12"), "Fixup C.2: WideResNet-40-10 and -16-12"),
        "epochs": ((200.0, 160.0), WRN),
        "batch_size": ((128,), WRN),
        "stem_channels": ((16,), WRN),
        "peak_lr": ((0.1, 0.01), WRN),
        "drops": (("0.3 0.6 0.8", "0.5 0.75"), WRN),
        "drop_factor": ((0.2, 0.1), WRN),
        "weight_decay": ((0.0005,), WRN),
        "scalar_factor": ((0.1,), "Fixup 4.2"),
        "padding": ((4, 0), "WRN section 3: none on SVHN"),
        "flip": ((True, False), "WRN section 3: none on SVHN"),
        "scheme": (("batchnorm", "fixup"), "Fixup table 4"),
        "mixup": ((1.0,), "Mixup section 3.2"),
        "cutout": ((16, 20), "Cutout section 4.3"),
    },
    "skipinit_table1_depth": {
        **_SKIPINIT,
        "weight_decay": ((0.0005, 0.0), "SkipInit v1, table 1: one line without L2"),
        "model": (("wrn-16-2", "wrn-100-2", "wrn-1000-2"), "SkipInit v1, table 1"),
        "scheme": (
            ("batchnorm", "alpha_rsqrt_depth", "skipinit", "alpha_one", "sqrt_half", "rezero"),
            "SkipInit v1, table 1; skipinit_no_bias ours",
        ),
    },
    "skipinit_table2_placement": {
        **_SKIPINIT,
        "weight_decay": ((0.0005,), PROTOCOL),
        "model": (("wrn-100-2", "wrn-1000-2"), "SkipInit feedback: 1000-2; v1: 100-2"),
        "scheme": (
            (
                "batchnorm",
                "batchnorm_last",
                "batchnorm_sqrt_half",
                "batchnorm_times_0.5",
                "batchnorm_times_0.25",
                "batchnorm_merge",
                "skipinit",
            ),
            "SkipInit feedback, 1 to 3; 'alpha <= sqrt(1/2)', of which a half and a quarter ours",
        ),
    },
    "rescale_multipliers": {
        "stem_channels": ((16,), "He et al., CVPR 2016, section 4.2"),
        "peak_lr": ((0.05,), "RescaleNet scripts: 0.1 B / 256"),
        **_CIFAR,
        "scheme": (
            ("rescalenet_with_multipliers", "rescalenet_without_multipliers"),
            "RescaleNet feedback",
        ),
    },
    "fixup_table2_imagenet": {
        **_IMAGENET,
        "peak_lr": ((0.1,), "Fixup code"),
        "mixup": ((0.0, 0.2, 0.1, 0.7), "Fixup 4.2"),
        "scalar_factor": ((0.1,), "Fixup 4.2, with mixup; code"),
        "model": (("resnet-50", "resnet-101"), "Fixup table 2"),
        "epochs": ((100, 200), "Fixup 4.2"),
        "batch_size": ((256,), "Fixup code"),
        "ghost_batch": ((32,), "Goyal et al., 2017, section 2.3: 32 images a GPU"),
        "drops": (("0.3 0.6 0.9",), "Fixup code: every 30 epochs"),
        "scheme": (("batchnorm", "groupnorm", "xavier", "fixup"), "Fixup table 2"),
    },
    "skipinit_imagenet": {
        **_IMAGENET,
        "warmup_epochs": ((5.0,), "Goyal et al., 2017, section 2.2"),
        "scalar_factor": ((0.1,), "Fixup code"),
        "model": (("resnet-50-v2",), "SkipInit v1, table 3: ResNet-50"),
        "ghost_batch": ((64,), "SkipInit: ghost batches of 64"),
        "batch_size": ((256, 1024, 4096), "SkipInit v1, table 3"),
        "scheme": (
            ("batchnorm", "fixup", "skipinit", "regularized_skipinit"),
            "SkipInit v1, table 3",
        ),
    },
    "rescale_imagenet": {
        **_IMAGENET,
        "peak_lr": ((0.4, 0.04), SCRIPTS),
        "warmup_epochs": ((5.0,), SCRIPTS),
        "epochs": ((105,), SCRIPTS),
        "batch_size": ((1024,), SCRIPTS),
        "drops": (
            (
                "0.3333333333333333 0.6190476190476191 0.9047619047619048",
                "0.6190476190476191 0.9047619047619048",
            ),
            "RescaleNet scripts: 30, 60, 90 after the warm-up",
        ),
        "model": (("resnet-50", "resnet-101", "vgg-19"), "RescaleNet feedback; scripts"),
        "scheme": (
            tuple(
                f"{scheme}_{network}"
                for network in ("resnet-50", "resnet-101", "vgg-19")
                for scheme in ("rescalenet", "rescalenet_at_0", "batchnorm", "plain")
            ),
            "RescaleNet section 5; uncalibrated and plain ours",
        ),
        "seed": ((0, 1, 2, 3, 4, 5), "RescaleNet feedback: mean and std from 6 runs"),
    },
    "fixup_table3_translation": {
        "dataset": (("iwslt14_translate/de-en",), "Fixup table 3: IWSLT DE-EN"),
        "vocabulary": ((10000,), "fairseq's preparation of IWSLT'14"),
        "model": (("transformer-6",), "fairseq transformer_iwslt_de_en"),
        "d_model": ((512,), "fairseq transformer_iwslt_de_en"),
        "num_heads": ((4,), "fairseq transformer_iwslt_de_en"),
        "d_ff": ((1024,), "fairseq transformer_iwslt_de_en"),
        "dropout": ((0.5,), "Fixup 4.3: 0.5 on IWSLT"),
        "max_tokens": ((4000,), "Fixup code: --max-tokens 4000"),
        "steps": ((200000,), "Fixup 4.3: 200k updates; the code has --max-update 226000"),
        "peak_lr": ((0.0005,), "Fixup code: --lr 0.0005"),
        "warmup_steps": ((4000,), "Fixup code: --warmup-updates 4000"),
        "label_smoothing": ((0.1,), "Fixup code: --label-smoothing 0.1"),
        "weight_decay": ((0.0001,), "Fixup code: --weight-decay 0.0001"),
        "scalar_factor": ((1.0,), "Fixup code for translation: one rate for all"),
        "beam": ((5,), "fairseq's recipe for IWSLT'14"),
        "alpha": ((1.0,), "fairseq's default"),
        "offset": ((0.0,), "fairseq's length penalty"),
        "scheme": (
            ("layernorm_post", "layernorm_pre", "fixup", "plain"),
            "Fixup table 3 and 4.3; layernorm_pre and plain ours",
        ),
    },
    "rescale_variance": {
        "depth": ((101,), "RescaleNet feedback: Rescale101"),
        "stem_channels": ((64,), "He et al., CVPR 2016, table 1"),
        "batch_size": ((128,), "RescaleNet feedback: 'a batch size of 128'"),
    },
}
"""Of each experiment the published settings of ``--scale paper``, and their values in order."""

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
    "fixup_table4_regularized svhn_extra": (
        604_388 // 128,
        {0: 0.01, 79: 0.01, 80: 0.001, 119: 0.001, 120: 0.0001, 159: 0.0001},
        WRN,
    ),
    "fixup_table2_imagenet resnet-50": (
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
    "rescale_imagenet resnet-50": (
        1_281_167 // 1024,
        {5: 0.4, 34: 0.4, 35: 0.04, 64: 0.04, 65: 0.004, 94: 0.004, 95: 0.0004, 104: 0.0004},
        SCRIPTS,
    ),
    "rescale_imagenet vgg-19": (
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
        "peak_lr": (0.1, "Fixup 4.1"),
        "warmup_epochs": (0.0, PROTOCOL),
        "optimizer": ("sgd", PROTOCOL),
        "nesterov": (False, PROTOCOL),
        "drops": ("0.5 0.75", DEFAULTS),
        "drop_factor": (0.1, DEFAULTS),
        "calibration_examples": (128, "RescaleNet feedback: 'a batch size of 128'"),
    },
    "nf_resnets.trained.fit_translation.TranslationRecipe": {
        "optimizer": ("adamw", "Vaswani 5.3: Adam"),
        "label_smoothing": (0.1, "Fixup code: --label-smoothing 0.1"),
    },
}
"""Of the dataclasses that users fill in."""

OF_FUNCTIONS = {
    "nf_resnets.optim.sgd": {"momentum": (0.9, DEFAULTS), "nesterov": (False, "Fixup code")},
    "nf_resnets.translation.adam": {
        "b2": (0.98, "Vaswani et al., 2017, section 5.3; Fixup code: --adam-betas '(0.9, 0.98)'")
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
    },
    "nf_resnets.models.CifarResNet": {
        "dropout": (0.6, "SkipInit: 0.6 before the head on CIFAR"),
        "stem_channels": (16, "He et al., CVPR 2016, section 4.2"),
    },
    "nf_resnets.models.ResNet": {
        "dropout": (0.2, "SkipInit: 0.2 before the head on ImageNet"),
        "stem_channels": (64, "He et al., CVPR 2016, table 1"),
    },
    "nf_resnets.models.VGG": {
        "classifier": ((4096, 4096), "Simonyan, Zisserman, ICLR 2015, table 1"),
        "pool_size": (7, "Simonyan, Zisserman, ICLR 2015, table 1"),
        "stem_channels": (64, "Simonyan, Zisserman, ICLR 2015, table 1"),
    },
}
"""Defaults of arguments."""
