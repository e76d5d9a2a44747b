"""What the tests of experiments share."""

import signal

import jax
import pytest

CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def as_before():
    """Puts back what an experiment's main changes: handlers of signals, the compilation cache."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    cache = {name: getattr(jax.config, name) for name in CACHE}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name, value in cache.items():
        jax.config.update(name, value)
