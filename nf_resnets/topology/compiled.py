"""What a compiled program needs of a chip: memory, arithmetic, bytes, collectives."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import jax

from nf_resnets.topology import hlo
from nf_resnets.topology.chips import Chip


class DoesNotFitError(Exception):
    """The compiler found no room for a program; its own error, in one clause."""


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What a compiled program needs of each chip, and the work of one of its training steps.

    Loops of constant length count as often as they go round. A program without a loop over
    training steps is one step.

    Attributes:
      arguments: bytes of its arguments: states and data.
      temporaries: bytes of its intermediate values.
      outputs: bytes of its outputs that do not take the place of donated arguments.
      code: bytes of the program itself.
      flops: by the compiler's count; what loops repeat of it, by that of products.
      bytes: read and written, by the compiler's count, wherever they lie.
      main_bytes: those of them in the chip's main memory, read from the program's text.
      collectives: of each kind, how many and how many bytes they give.
      peak: bytes in use when most are, without code; None where the compiler does not say. It may
        be far below the sum of the first three, and by it the compiler decides what fits.
    """

    arguments: int
    temporaries: int
    outputs: int
    code: int
    flops: float
    bytes: float
    main_bytes: float
    collectives: Mapping[str, tuple[float, float]]
    peak: int | None = None

    @property
    def memory(self) -> int:
        """Bytes that a chip must have for it."""
        most = self.arguments + self.temporaries + self.outputs
        return min(most, self.peak or most) + self.code

    def bound(self, chip: Chip) -> tuple[float, str]:
        """The shortest possible seconds of a step, and whether compute or memory bounds it.

        ``max(flops / peak, bytes / bandwidth)``; Williams, Waterman, Patterson, *Roofline*, 2009.
        """
        by_memory = self.main_bytes / chip.bandwidth, "memory"
        return max((self.flops / chip.bfloat16, "compute"), by_memory)


def compile_footprint(lowered: jax.stages.Lowered) -> Footprint:
    """Compiles a lowered program, and says what it needs.

    Raises:
      DoesNotFitError: if the compiler finds no room for it in the chip's memory.

    Example:
      >>> import jax.numpy as jnp
      >>> found = compile_footprint(jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))))
      >>> found.flops, found.arguments, found.outputs, found.collectives
      (1024.0, 256, 256, {})
    """
    try:
        compiled = lowered.compile()
    except Exception as error:  # a type of XLA's
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFitError(_needed(str(error))) from None
    return footprint(compiled)


def footprint(compiled: jax.stages.Compiled) -> Footprint:
    """What a compiled program needs, by the compiler's analyses and the program's text."""
    text = compiled.as_text() or ""
    cost, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    once, repeated = hlo.work(text, repeat_loops=False), hlo.step(text)
    assert memory is not None
    return Footprint(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        outputs=max(0, memory.output_size_in_bytes - memory.alias_size_in_bytes),
        code=memory.generated_code_size_in_bytes,
        # The compiler counts every loop once, and what is outside the steps.
        flops=cost.get("flops", 0.0) + repeated["flops"] - once["flops"],
        bytes=cost.get("bytes accessed", 0.0) + repeated["bytes"] - once["bytes"],
        main_bytes=repeated["main_bytes"],
        collectives={
            kind: (repeated[f"count {kind}"], repeated[f"bytes {kind}"])
            for kind in hlo.COLLECTIVES
            if repeated[f"count {kind}"]
        },
        peak=getattr(memory, "peak_memory_in_bytes", None),
    )


def _needed(message: str) -> str:
    """The compiler's words about memory in one clause."""
    found = re.findall(r"\b(\d+(?:\.\d+)?[KMGT])\b", message)
    if len(found) > 1:
        return f"it needs {found[0]} of {found[1]} bytes"
    return f"the compiler says: {' '.join(message.split())[:200]}"
