"""Numbers from inside a compiled network, without the library's own ways to get at them."""

import jax
import numpy as np


def noted(seen, path, value):
    """Appends ``(path, value)`` to a list whenever it is computed, and returns a 0 to add.

    The 0 is what keeps the compiler from leaving it out: Flax's scan takes no effects.
    """

    def note(value):
        seen.append((path, np.array(value)))
        return np.zeros((), np.float32)

    return jax.pure_callback(note, jax.ShapeDtypeStruct((), np.float32), value)
