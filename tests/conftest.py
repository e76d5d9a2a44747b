"""Fixtures that tests of several folders share."""

import signal

import jax
import pytest

CACHE = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture
def as_before():
    """Puts back what commands change: handlers of signals, the compilation cache."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    cache = {name: getattr(jax.config, name) for name in CACHE}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name, value in cache.items():
        jax.config.update(name, value)


@pytest.fixture
def strangers_broadcast():
    """Lets arrays of different rank be broadcast, as in networks of other people."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="session")
def photographs_dir(tmp_path_factory):
    """The folder of the usual photographs, written once for all tests of a process."""
    from tests import photographs

    folder = tmp_path_factory.mktemp("imagenet")
    photographs.write(folder, photographs.examples())
    return folder
