"""Settings that must stand before JAX is imported.

The file is at the root because the doctests of the package need it as much as the tests do. The
settings are environment variables, so that processes which a test starts have them too.
"""

import collections
import gc
import importlib.metadata
import os
import sys

import pytest

# What the tests import stays to the end: the garbage collector need not go through it again and
# again, which took a twelfth of the time. Collecting the tests makes hardly any garbage.
gc.disable()

DEVICES = "--xla_force_host_platform_device_count"

if "jax" in sys.modules:
    raise pytest.UsageError(
        "JAX was imported before conftest.py could choose its devices; is a plugin loading it?"
    )

# Eight devices on a CPU, unless whoever started the tests chose a number.
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8".strip()
# Splitting a program for several threads costs more than it saves where it is small.
SPLIT = "--xla_cpu_parallel_codegen_split_count"
if SPLIT not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += f" {SPLIT}=1"
# On a CPU also where there is an accelerator; JAX_PLATFORMS=cuda runs the tests there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Arrays of different rank are not broadcast by chance: a missing axis is an error.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# Figures are drawn without a display.
os.environ.setdefault("MPLBACKEND", "Agg")

# Where programs run once and no two of them are compared bit for bit, LLVM's optimisations only
# cost time; these are compiled with them.
UNOPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
OPTIMIZED = (
    "experiments/test_skipinit_lr_batch.py",
    "topology/test_compiled.py",
    "training/test_checkpoint.py",
    "training/test_hosts.py",
    "training/test_preemption.py",
)


def pytest_configure(config):
    """Lets quick runs compile without XLA's fused loops: twice as fast; only rounding changes."""
    # Later versions do not have the flag.
    version = tuple(map(int, importlib.metadata.version("jax").split(".")[:2]))
    if config.option.markexpr == "not slow" and version < (0, 11):
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(request):
    """Compiles without LLVM's optimisations where that is enough."""
    import jax

    path = request.path.relative_to(request.config.rootpath).as_posix()
    quickly = path.removeprefix("tests/") not in OPTIMIZED
    # What takes minutes runs for longer than it compiles.
    quickly = quickly and request.config.option.markexpr == "not slow"
    os.environ[UNOPTIMIZED] = str(int(quickly))
    if quickly != jax.config.read(UNOPTIMIZED.lower()):
        # What other files have compiled in the other way is not to be met here.
        jax.clear_caches()
        jax.config.update(UNOPTIMIZED.lower(), quickly)


def pytest_collection_finish():
    """Leaves what is there out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked ``every(k)``, leaves each ``k``-th case to the quick runs.

    Its other cases are slow ones: large tables of alike cases, of which a few show most mistakes.
    """
    seen = collections.Counter()
    for item in items:
        every = item.get_closest_marker("every")
        if every is None or item.get_closest_marker("slow"):
            continue
        function = item.nodeid.partition("[")[0]
        if seen[function] % every.args[0]:
            item.add_marker("slow")
        seen[function] += 1
