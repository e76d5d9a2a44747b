"""The list of mutants: what is changed, where, and which tests are to notice.

A mutant is one wrong number, sign, comparison or place, of the kind that a hurried edit makes. The
tests named are quick ones, the fewest that look at the place; ``make test`` runs all of them.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault: in ``path`` the text ``old``, which occurs once, becomes ``new``."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _in(path: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    paths = tuple(f"tests/{name}" for name in tests.split())
    place = path if path.startswith("experiments/") else f"nf_resnets/{path}"
    return [Mutant(place, old, new, paths) for old, new in changes]


MUTANTS = [
    # What a leaf is.
    *_in(
        "roles/branches.py",
        "test_roles.py init/test_trees.py",
        ('((-1, order.index(name), ""),)', '((-1, 0, ""),)'),
        ("rules), start=1)", "rules), start=0)"),
    ),
    *_in(
        "roles/leaf.py",
        "test_roles.py init/test_attention.py",
        ('return taps * leaf.length("I"), taps', 'return leaf.length("I"), taps'),
    ),
    *_in(
        "roles/leaf.py",
        "test_grouped.py",
        ('leaf.length("O") // leaf.groups', 'leaf.length("O")'),
    ),
    *_in(
        "roles/grouped.py",
        "test_grouped.py",
        ("found[leaf] = given // taken", "found[leaf] = taken"),
        ("if any(_takes_grey_images(leaf) for leaf in leaves):", "if False:"),
        ("leaf.layer) != (1, 1)]", "leaf.layer) == ()]"),
        ("ambiguous.items() if leaf.own_shape in shapes}", "ambiguous.items() if False}"),
    ),
    *_in(
        "init/data_dependent.py",
        "analysis/test_strangers_networks.py",
        ("np.asarray(found) >= count", "np.asarray(found) > count"),
    ),
    *_in(
        "analysis/updates.py",
        "analysis/test_strangers_networks.py",
        ("images, labels), axis=-1)", "images, labels), axis=1)"),
    ),
    *_in(
        "init/ordered.py",
        "init/test_ordered.py",
        ("elif not inner and None in operands:", "elif not inner:"),
        ('"dynamic_slice" and operands[0]', '"dynamic_slice" and False'),
    ),
    *_in(
        "roles/vectors.py",
        "init/test_norms.py",
        ("if leaf.role in LAYER_ROLES and not leaf.weight", "if False"),
        ("or _SLOPE.search(last_name(leaf))", "or None"),
    ),
    *_in(
        "init/needs.py",
        "init/test_norms.py",
        ("if leaf.role is Role.HEAD and location.inside", "if False"),
    ),
    *_in(
        "init/zero_gamma.py",
        "init/test_zero_gamma.py",
        ("if len(of_one) > branch.m:", "if len(of_one) > branch.m + 1:"),
    ),
    *_in(
        "roles/axes.py",
        "test_roles.py init/test_attention.py",
        ('"IOO" for name in order[:3]', '"IIO" for name in order[:3]'),
    ),
    # How rates follow width and depth, and what Muon takes for a matrix.
    *_in(
        "parametrization.py",
        "optim/test_parametrized.py",
        ("rate = r_out / r_in * l", "rate = r_in / r_out * l"),
        ("c * l**-a / r_out", "c / r_out"),
    ),
    *_in(
        "roles/sizes.py",
        "optim/test_parametrized.py",
        ("(leaf.stacked or not beside <= stacked)", "True"),
    ),
    *_in(
        "optim/adaptive.py",
        "optim/test_adaptive.py",
        ('for letters in ("DHWI", "O")', 'for letters in ("NDHWI", "O")'),
    ),
    # The initialisers.
    *_in(
        "init/fixup.py",
        "init/test_trees.py",
        ("base ** (-1 / (2 * leaf.m - 2))", "base ** (-1 / (2 * leaf.m))"),
        (
            "last = leaf.role is Role.BRANCH and leaf.layer == leaf.m\n        if",
            "last = leaf.role is Role.BRANCH and leaf.layer == 1\n        if",
        ),
        (
            "if leaf.role in (Role.HEAD, Role.SCALAR_BIAS) or last:",
            "if leaf.role is Role.SCALAR_BIAS or last:",
        ),
        ('mode="fan_out"', 'mode="fan_in"'),
    ),
    *_in(
        "init/rescalenet.py",
        "init/test_rescalenet.py",
        ("(1 / (2 * leaf.m))", "(1 / leaf.m)"),
        ("if leaf.role in (Role.SHORTCUT, Role.HEAD):", "if leaf.role is Role.SHORTCUT:"),
        ("np.arange(1, int(depth) + 1) - published", "np.arange(int(depth)) - published"),
        ("k = np.arange(first, depth + first)", "k = np.arange(depth)"),
        ("kept[own] ** 0.5", "kept[own] ** 0.0"),
        ("max(len(transitions), 1) ** -0.5", "max(len(transitions), 1) ** -1.0"),
    ),
    *_in(
        "init/skipinit.py",
        "init/test_contract.py init/test_errors.py",
        ("int(depth) ** -0.5 if rootable", "int(depth) ** -1.0 if rootable"),
        ("            alpha_of[k] = leaf.path", "            alpha_of[-k] = leaf.path"),
    ),
    *_in(
        "init/needs.py",
        "init/test_needs.py",
        ("leaf.role is Role.BRANCH and leaf.layer == leaf.m", "leaf.layer == 1"),
        ("and not all_zero(value):", "and all_zero(value):"),
        ("leaf.role is Role.HEAD or (", "leaf.role is Role.STEM or ("),
    ),
    *_in(
        "init/zeros.py",
        "init/test_norms.py",
        ("return given == taken or", "return"),
        ("and not numbered:", "and numbered:"),
        ("taken % given == 0", "taken == 0"),
    ),
    *_in(
        "roles/role_map.py",
        "init/test_errors.py",
        ("if (path, shape) != (expected, leaf.shape):", "if path != expected:"),
        ("_IN_A_LIST_OF_LISTS.search(path)", "False"),
    ),
    *_in(
        "roles/branch_checks.py",
        "init/test_layer_order.py",
        ("not {taken, 2 * taken} & widths", "not {taken} & widths"),
        ("not all(map(_is_dense, row)) and", "False and"),
        ("enumerate(row):", "enumerate(row[:1]):"),
        ("begins == ends and begins not in fitting:", "begins == ends:"),
        ("if taken == given and begins == ends and", "if False and"),
        ("given != 2 * taken and not told", "not told"),
        ("if following == taken and inner and", "if False and"),
        ("if following == taken and inner and", "if following == taken and"),
    ),
    *_in(
        "roles/axes.py",
        "init/test_layer_order.py",
        ("before + value + after]", "before + key + after]"),
        ("if len(rest) < len(names):", "if False:"),
    ),
    *_in(
        "analysis/closed_form.py",
        "analysis/test_closed_form.py",
        ("through_skip = skip.mean() / variance", "through_skip = skip.mean() / entering"),
        ("skip / kept if normalized and", "skip if normalized and"),
    ),
    *_in(
        "training/statistics.py",
        "training/test_statistics.py",
        ("jnp.maximum(jnp.abs(new), 1)", "jnp.ones_like(new)"),
    ),
    *_in(
        "trained/fit.py",
        "trained/test_resume.py",
        ("digest(dataset.train.images, dataset.mean", "digest(dataset.mean"),
    ),
    *_in(
        "init/xavier.py",
        "init/test_distributions.py",
        ("3**0.5 * std", "std"),
        ("(2 / (fan_in + fan_out)) ** 0.5", "(2 / fan_in) ** 0.5"),
    ),
    *_in(
        "init/nf_resnet.py",
        "init/test_nf_resnet.py",
        ("(1.0 if transition else variance) + ALPHA**2", "variance + ALPHA**2"),
        ("std = 0.01 if leaf.role is Role.HEAD else", "std = 0.1 if leaf.role is Role.HEAD else"),
    ),
    *_in(
        "init/t_fixup.py",
        "init/test_t_fixup.py",
        ("(9 * number) ** -0.25", "(9 * number) ** -0.5"),
        ("0.67 * number**-0.25", "0.67 * number**-0.5"),
    ),
    *_in(
        "init/deepnorm.py",
        "init/test_deepnorm.py",
        ("both / 1.15", "both"),
        ("(12 * decoder) ** 0.25", "(8 * decoder) ** 0.25"),
        ("scaled(value, 1 / beta)", "scaled(value, beta)"),
    ),
    *_in("init/admin.py", "init/test_deepnorm.py", ("return math.sqrt(", "return abs(")),
    *_in(
        "models/dynamic_tanh.py",
        "init/test_dyt.py",
        ("y = jnp.tanh(y)", "y = jnp.sin(y)"),
        ("START = 0.5", "START = 1.0"),
    ),
    *_in(
        "init/lsuv.py",
        "init/test_lsuv.py",
        ("while off >= tolerance", "while off >= 10 * tolerance"),
        ("(off >= tolerance) &", "(off >= 10 * tolerance) &"),
        ("length > 1 for length in shape) > 1", "length > 1 for length in shape) > 2"),
    ),
    *_in(
        "calibration.py",
        "init/test_lsuv.py",
        ("if module.has_variable(UNIT_VARIANCE, name):", "if not module.scope:"),
    ),
    # The networks.
    *_in(
        "models/layers.py",
        "init/test_nf_resnet.py",
        ("RELU_GAIN = (2 / (1 - 1 / math.pi)) ** 0.5", "RELU_GAIN = 2**0.5"),
        (
            "lax.rsqrt(jnp.maximum(variance * fan_in, how.epsilon))",
            "lax.rsqrt(jnp.maximum(variance, how.epsilon))",
        ),
    ),
    *_in(
        "models/layers.py",
        "models/test_conv.py",
        ("return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)", "return nn.relu(x)"),
    ),
    *_in(
        "models/layers.py",
        "models/test_batchnorm.py models/test_dropout.py",
        ("jnp.where(keep, x / (1 - rate), 0)", "jnp.where(keep, x, 0)"),
        ("momentum: float = 0.9", "momentum: float = 0.99"),
    ),
    *_in(
        "models/stage.py",
        "models/test_dropout.py",
        ("DROPPED_STAGES = 2", "DROPPED_STAGES = 1"),
        ("DROPPED_STAGES = 2", "DROPPED_STAGES = 3"),
    ),
    *_in(
        "models/noise.py",
        "models/test_noise.py",
        ("np.arange(1, num_blocks + 1) / num_blocks", "np.arange(num_blocks) / num_blocks"),
        ("_SURVIVAL = 0", "_SURVIVAL = 1"),
    ),
    *_in(
        "models/blocks.py",
        "models/test_published.py models/test_resnet.py",
        ('biased = layers.center(x, "bias_1a")', 'biased = layers.center(x, "bias_1a") * 0 + x'),
        ("source = x if self.anatomy.pooled_shortcut else biased", "source = x"),
        ("length - size * np.arange(", "size + 0 * np.arange("),
    ),
    *_in(
        "models/embedding.py",
        "models/test_transformer.py init/test_published_fixup.py",
        ("* self.d_model**0.5", "* 1.0"),
        ("max(d_model // 2 - 1, 1)", "max(d_model // 2, 1)"),
        ('half / (d_model / 2 if form == "paper"', 'half / (d_model if form == "paper"'),
    ),
    *_in(
        "models/attention.py",
        "models/test_transformer.py",
        ("query * query.shape[-1] ** -0.5", "query * query.shape[-1] ** -1.0"),
    ),
    *_in(
        "models/conv.py",
        "models/test_conv.py",
        ("padding = (kernel.shape[0] - 1) // 2", "padding = kernel.shape[0] // 2 - 1"),
        ("jnp.flip(kernel, (0, 1)).swapaxes(2, 3)", "kernel.swapaxes(2, 3)"),
    ),
    # Data.
    *_in(
        "data/augment.py",
        "data/test_cutout.py",
        ("_CROP, _FLIP, _CUTOUT = 0, 1, 2", "_CROP, _FLIP, _CUTOUT = 0, 1, 0"),
        ("_CROP, _FLIP, _CUTOUT = 0, 1, 2", "_CROP, _FLIP, _CUTOUT = 0, 1, 1"),
        ("centre - size // 2", "centre - (size - 1) // 2"),
    ),
    *_in(
        "data/mixup.py",
        "data/test_mixup.py",
        ("2 / (2 * alpha - 1)", "1 / (2 * alpha - 1)"),
        ("(2, _PAIRS)) / alpha", "(2, _PAIRS)) * alpha"),
        (
            "return fraction * images + (1 - fraction) * others",
            "return (1 - fraction) * images + fraction * others",
        ),
    ),
    *_in(
        "data/augment.py",
        "data/test_augment.py data/test_cutout.py",
        ("0, 2 * padding + 1)", "0, 2 * padding)"),
        ("_CROP, _FLIP, _CUTOUT = 0, 1, 2", "_CROP, _FLIP, _CUTOUT = 0, 0, 2"),
    ),
    *_in(
        "data/order.py",
        "data/test_order.py",
        ("jnp.asarray(step) % steps * batch_size", "jnp.asarray(step) * batch_size"),
        ("jax.random.fold_in(seed_key(seed), epoch)", "seed_key(seed)"),
    ),
    *_in(
        "data/crop.py",
        "data/test_crop.py",
        ("int(across * (width - w + 1))", "int(across * (width - w))"),
        ("round((new_height - size) / 2)", "round(new_height - size)"),
    ),
    # The optimisers.
    *_in(
        "optim/schedules.py",
        "optim/test_schedules.py",
        ("range(halvings, 2 * halvings)", "range(halvings + 1, 2 * halvings + 1)"),
        ("for each in rates], steps)", "for each in rates], [step + 1 for step in steps])"),
        ("jnp.sqrt(warmup_steps / number)", "warmup_steps / number"),
        ("jnp.minimum(1.0, number / warmup_steps)", "jnp.minimum(1.0, step / warmup_steps)"),
    ),
    *_in(
        "optim/clipping.py",
        "optim/test_clipping.py",
        ('if letter not in "NO"', 'if letter not in "O"'),
        ('if letter not in "NO"', 'if letter not in "NI"'),
        ("exempt: tuple[Role, ...] = (Role.HEAD,)", "exempt: tuple[Role, ...] = ()"),
    ),
    *_in(
        "schemes.py",
        "optim/test_sgd.py optim/test_groups.py contracts/test_slow_leaves.py",
        (
            "scalar_factor: float = dataclasses.field(default=0.1",
            "scalar_factor: float = dataclasses.field(default=1.0",
        ),
        (
            "SCALARS = Group((Role.SCALAR_BIAS, Role.MULTIPLIER))",
            "SCALARS = Group((Role.SCALAR_BIAS,))",
        ),
    ),
    # What a run is called.
    *_in(
        "experiments/runs.py",
        "experiments/test_runs.py",
        ('re.sub(r" at 0x[0-9a-f]+", "", repr(group[0].program))', "repr(group[0].program)"),
    ),
    # The recipes of the papers.
    *_in(
        "experiments/fixup_table1_resnet110.py",
        "experiments/test_published.py",
        ("weight_decay: float = 1e-4", "weight_decay: float = 5e-4"),
    ),
    *_in(
        "experiments/fixup_fig3_depth.py",
        "experiments/test_published.py",
        ("weight_decay: float = 5e-4", "weight_decay: float = 1e-4"),
    ),
    *_in(
        "experiments/fixup_fig4_ablation.py",
        "experiments/test_published.py",
        ("weight_decay: float = 1e-4", "weight_decay: float = 5e-4"),
    ),
    *_in(
        "experiments/fixup_table4_regularized.py",
        "experiments/test_published.py",
        ("mixup=1.0, cutout=20", "mixup=1.0, cutout=16"),
        ("learning_rate=0.1, epochs=200", "learning_rate=0.1, epochs=100"),
    ),
    *_in(
        "experiments/skipinit_table1_depth.py",
        "experiments/test_published.py",
        ("seeds=(0, 1, 2, 3, 4), padding=4", "seeds=(0, 1, 2), padding=4"),
    ),
    *_in(
        "experiments/skipinit_table2_placement.py",
        "experiments/test_published.py",
        ("(0, -1, -2, -3, -4, -5, -6), seeds", "(0, -1, -2, -3, -4, -5), seeds"),
    ),
    # What comes after the initialisation.
    *_in(
        "data/folder.py",
        "data/test_folder.py",
        ("file.relative_to(each).parts)", "file.parts[-1:])"),
    ),
    *_in(
        "training/device_iterator.py",
        "training/test_device_iterator.py",
        ("stop - start].copy()", "stop - start]"),
    ),
    *_in(
        "training/statistics.py",
        "training/test_statistics.py",
        ("given if is_counter(given) else mean", "mean"),
    ),
    *_in(
        "training/state.py",
        "training/test_step.py training/test_loop.py",
        ("for name in [*there, *here]", "for name in there"),
    ),
    *_in(
        "trained/display.py",
        "trained/test_display.py",
        ("run.step - run.step % self._every", "run.step"),
    ),
    *_in(
        "trained/quick.py",
        "trained/test_quick.py",
        ("str(training_fit.identity(model, dataset, how))", "str(settings)"),
    ),
    *_in(
        "models/conv.py",
        "models/test_published_nf_resnet.py",
        ("if any(pad != (margin, margin) for", "if any(pad[0] != pad[1] for"),
    ),
    *_in(
        "translation/program.py",
        "translation/test_program.py",
        ("for one in (corpus, test_corpus):", "for one in (corpus,):"),
    ),
    # What a sweep makes of its runs.
    *_in(
        "sweep/command.py",
        "sweep/test_command.py",
        ("for name in WRITTEN if", "for name in WRITTEN[:1] if"),
        ("        for metric in metrics", "        for metric in METRICS"),
    ),
    *_in(
        "models/layers.py",
        "models/test_noise.py",
        ("or not 0 <= network.dropout < 1", "or not 0 <= network.dropout <= 1"),
    ),
    *_in(
        "sweep/find_lr.py",
        "sweep/test_find_lr.py",
        ("losses[-max(1, len(losses) // 10) :]", "losses"),
    ),
    *_in(
        "sweep/ledger.py",
        "sweep/test_ledger.py",
        ("{**later, **row", "{**row"),
    ),
    *_in(
        "sweep/programs.py",
        "sweep/test_programs.py",
        ("self._users[name] -= 1", "self._users[name] -= 0"),
    ),
    *_in(
        "sweep/select.py",
        "sweep/test_select.py",
        ("statistics.stdev(values)", "statistics.pstdev(values)"),
        ('rule == "trimmed" and fraction <= 0.5', 'rule == "trimmed" and fraction <= 1.0'),
        ("if top - score <= within", "if top - score < 0"),
        ("best == rates[0] else", "best == rates[1] else"),
        ("low_open=low == 0", "low_open=False"),
    ),
    *_in(
        "sweep/regimes.py",
        "sweep/test_regimes.py",
        ("part**n for w, part in parts) for n", "part for w, part in parts) for n"),
        ("fit([p for p in places if p.x != x])", "fit(list(places))"),
        ("smooth < bent else", "smooth > bent else"),
    ),
    *_in(
        "sweep/targets.py",
        "sweep/test_targets.py",
        ("statistics.median_high(", "statistics.median_low("),
        ("* (value - target) >= 0", "* (value - target) > 0"),
        ('row["state"] != "finished" or not', "not"),
        ("Point(size, 1 / one.steps,", "Point(size, 1 / one.low,"),
        ("math.floor(value / unit + 1e-9)", "math.ceil(value / unit - 1e-9)"),
        ('in ("finished", "diverged")]', 'in ("finished", "diverged", "waiting")]'),
    ),
    # Training.
    *_in(
        "training/average.py",
        "training/test_average.py",
        ("(1 - average.decay) * (leaf", "average.decay * (leaf"),
    ),
    *_in(
        "training/loss.py",
        "training/test_loss.py",
        ("right &= ~jnp.isnan(logits).any(axis=-1)", "right &= True"),
        (
            "uniform = -jax.nn.log_softmax(logits).mean(axis=-1)",
            "uniform = -jax.nn.log_softmax(logits).sum(axis=-1)",
        ),
        (
            'return fraction * of("label") + (1 - fraction)',
            'return (1 - fraction) * of("label") + fraction',
        ),
    ),
    *_in(
        "training/evaluate.py",
        "training/test_evaluate.py",
        ("(index < count).astype", "(index <= count).astype"),
    ),
    *_in(
        "training/statistics.py",
        "training/test_statistics.py",
        ("value / (1 - momentum)", "value / momentum"),
    ),
    *_in(
        "training/step.py",
        "training/test_step.py training/test_devices.py",
        ("(total / parts).astype(like.dtype)", "total.astype(like.dtype)"),
        ("jnp.float32 if half else like.dtype", "like.dtype"),
        ("return of_part if is_counter(of_part) else total", "return total"),
        ("(lax.pmax if is_counter(leaf) else lax.pmean)", "lax.pmean"),
        ("state.params, value=loss)", "state.params, value=2 * loss)"),
    ),
    *_in(
        "training/steps.py",
        "training/test_step.py",
        ("return finite & (index < count)", "return index < count"),
        ("jnp.minimum(count, per_epoch - state.step % per_epoch)", "jnp.minimum(count, per_epoch)"),
    ),
    *_in(
        "training/host_steps.py",
        "training/test_streamed_loop.py",
        ("if own.batches is None or own.at != at:", "if own.batches is None:"),
        ("own.at = at[0], at[1] + len(rows)", "own.at = at"),
    ),
    *_in(
        "training/loop.py",
        "training/test_loop.py",
        ('(status == "finished" and (ended', "((ended"),
        ('status = "stopped"', "break"),
    ),
    # Theory and diagnostics.
    *_in(
        "analysis/stable_rate.py",
        "analysis/test_stable_rate.py",
        ("max(len(losses) // 4, 1)", "max(len(losses) // 2, 1)"),
        ("max(len(losses) // 4, 1)", "1"),
        ("momentum * v + g", "v + g"),
    ),
    *_in(
        "analysis/closed_form.py",
        "analysis/test_closed_form.py",
        ("back /= variance if normalized else q.mean()", "back /= 1.0"),
        ("np.full(depth, 1 / max(depth, 1))", "np.full(depth, max(depth, 1) ** -0.5)"),
        ("variance = CENTERED_RELU * branch.mean()", "variance = branch.mean()"),
        ("q = q / q.mean() if normalized and at else q", "q = q * 1.0"),
    ),
    *_in(
        "analysis/noise_scale.py",
        "analysis/test_noise_scale.py",
        (
            "(large_batch * large - small_batch * small)",
            "(large_batch * small - small_batch * large)",
        ),
        ("(1 / small_batch - 1 / large_batch)", "(1 / small_batch + 1 / large_batch)"),
        ("(float(jnp.mean(jnp.asarray(values))) for values in", "(float(values[0]) for values in"),
    ),
    *_in(
        "training/step.py",
        "training/test_step.py",
        ("examples // micro_batches, examples * replicas)", "examples // micro_batches, examples)"),
    ),
    *_in(
        "analysis/correlation.py",
        "analysis/test_correlation.py",
        ("(skip + branch - total) / total", "(skip + branch - total) / skip"),
    ),
    *_in(
        "analysis/signal.py",
        "analysis/test_signal.py",
        ("jnp.square(rows - mean.reshape(1, -1)).mean()", "jnp.square(rows).mean()"),
        ("slice(interior, -interior)", "slice(0, -interior)"),
    ),
    # Translation.
    *_in(
        "translation/beam.py",
        "translation/test_beam.py",
        (
            "done = jnp.isfinite(scores[:, -1]) | (scores[:, 0] >= hope)",
            "done = scores[:, 0] >= hope",
        ),
        (
            "done = jnp.isfinite(scores[:, -1]) | (scores[:, 0] >= hope)",
            "done = jnp.isfinite(scores[:, -1])",
        ),
        (
            "hope = alive_sums[:, 0] / penalty(limits)",
            "hope = alive_sums[:, 0] / penalty(position + 1)",
        ),
        ("(jnp.arange(2 * beam) < beam)", "(jnp.arange(2 * beam) < 2 * beam)"),
        (
            "((offset + length) / (offset + 1.0)) ** alpha",
            "((offset + length) / (offset + 1.0)) ** (1 - alpha)",
        ),
    ),
    *_in(
        "translation/loss.py",
        "translation/test_loss.py",
        ("there = targets != PADDING", "there = targets >= PADDING"),
    ),
    *_in(
        "translation/batches.py",
        "translation/test_batches.py",
        (
            "max(1, max_tokens // width // devices) * devices",
            "max(1, max_tokens // width) * devices",
        ),
        ("[BEGIN, *target[:-1]]", "[BEGIN, *target]"),
    ),
    *_in(
        "translation/adam.py",
        "translation/test_adam.py experiments/test_published.py",
        ("b2: float = 0.98", "b2: float = 0.999"),
    ),
    # What commands show, and how they end.
    *_in(
        "sweep/display.py",
        "sweep/test_display.py",
        ("sum(spent.values()) + compiled + sum(compiling.values())", "sum(spent.values())"),
    ),
    *_in("command_line.py", "test_command_line.py", ("MISTAKE = 2", "MISTAKE = 1")),
    *_in(
        "training/compiling.py",
        "trained/test_display.py",
        ("max(longest[stage], duration_secs)", "duration_secs"),
    ),
    # What figures say and show.
    *_in("looks.py", "test_looks.py", (r"(?![\w.])", "")),
    *_in(
        "experiments/findings.py",
        "experiments/test_findings.py",
        ("(chance + max(means.values())) / 2", "max(means.values()) / 2"),
        (
            'if any(row["status"] == "diverged" for row in own)',
            'if all(row["status"] == "diverged" for row in own)',
        ),
    ),
    *_in(
        "plotting/diverged.py",
        "plotting/test_depth.py",
        ("(column - (beside - 1) / 2) * 7.5 / 72", "0.0"),
    ),
    *_in(
        "plotting/answers.py",
        "plotting/test_answers.py",
        ('not any(each["diverged"] for each in of)', 'not of[-1]["diverged"]'),
    ),
    # Data sets of the user's own.
    *_in(
        "data/dataset.py",
        "data/test_folder.py",
        ("order = order[~is_test[order]]", "order = order[:]"),
        ("round(len(rows) / 5)", "len(rows) // 6"),
    ),
    *_in(
        "data/folder.py", "data/test_folder.py", ("pixels[..., :1] if is_grey", "pixels if is_grey")
    ),
    *_in("sweep/find_lr.py", "sweep/test_find_lr.py", ("if each.diverged", "if not each.n")),
]
