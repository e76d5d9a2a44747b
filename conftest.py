"""Settings that must stand before JAX is imported.

The file is at the root because the doctests of the package need it as much as the tests do. The
settings are environment variables, so that processes which a test starts have them too.
"""

import collections
import functools
import gc
import importlib.metadata
import os
import subprocess
import sys
import threading

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
# Programs of functions that live on, such as JAX's own, are kept, a MiB and five memory maps each,
# until a file begins with more maps than these: without an end a worker grew to 10 GiB.
MOST_MAPS = 6000
# What one worker runs by itself: the folder whose fixtures train a network once a session.
SHARING = "tests/trained/"


def pytest_configure(config):
    """Lets quick runs compile without XLA's fused loops: twice as fast; only rounding changes."""
    # Later versions do not have the flag.
    version = tuple(map(int, importlib.metadata.version("jax").split(".")[:2]))
    if config.option.markexpr == "not slow" and version < (0, 11):
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    """Fails the run if tests have left files in the tree that git would take for new ones."""

    def untracked():
        command = ("git", "-C", session.config.rootpath, "ls-files", "-o", "--exclude-standard")
        try:
            return set(subprocess.run(command, capture_output=True, text=True).stdout.splitlines())
        except OSError:  # a machine without git
            return set()

    # Workers of xdist leave it to the process that started them.
    before = None if hasattr(session.config, "workerinput") else untracked()
    result = yield
    if before is not None and (left := untracked() - before):
        print(f"\nThe tests left files in the tree: {', '.join(sorted(left))}")
        session.testsfailed += 1
    return result


@pytest.fixture(autouse=True, scope="session")
def no_keys_of_programs(request):
    """Computes no keys of programs for a cache that nobody asked for, in quick runs.

    JAX decides at its first compilation whether it computes them.
    """
    import jax

    if (
        request.config.option.markexpr == "not slow"
        and jax.config.jax_compilation_cache_dir is None
    ):
        jax.config.update("jax_enable_compilation_cache", False)
        jax.jit(lambda x: x).lower(0.0).compile()
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.fixture(autouse=True, scope="module")
def one_context(request):
    """Lowers the programs of a file in one MLIR context, in quick runs.

    A context for each, as JAX makes them, is about a tenth of the time of all tests. Other threads
    than the main one keep to that.
    """
    from jax._src.interpreters import mlir

    make = getattr(mlir, "make_ir_context", None)
    if make is None or request.config.option.markexpr != "not slow":
        yield
        return
    shared = functools.cache(make)

    def make_ir_context():
        return shared() if threading.current_thread() is threading.main_thread() else make()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir, "make_ir_context", make_ir_context)
        yield


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(request):
    """Compiles without LLVM's optimisations where that is enough."""
    import jax

    path = request.path.relative_to(request.config.rootpath).as_posix()
    quickly = path.removeprefix("tests/") not in OPTIMIZED
    # What takes minutes runs for longer than it compiles.
    quickly = quickly and request.config.option.markexpr == "not slow"
    if os.environ.get(UNOPTIMIZED) != str(int(quickly)) or memory_maps() > MOST_MAPS:
        # Nor may other files meet what was compiled otherwise.
        jax.clear_caches()
        gc.collect()
    os.environ[UNOPTIMIZED] = str(int(quickly))
    jax.config.update(UNOPTIMIZED.lower(), quickly)


def memory_maps():
    """The memory maps of this process, five for a compiled program; too many where none is told."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return MOST_MAPS + 1


def pytest_collection_finish():
    """Leaves what is there out of every later garbage collection."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each file to one worker, and files that share what is costly to the same one."""
    from xdist.scheduler import LoadFileScheduling

    class LoadSharing(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return SHARING if file.startswith(SHARING) else file

    return LoadSharing(config, log) if config.getoption("dist") == "loadfile" else None


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
