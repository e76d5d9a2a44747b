"""Initialisers that take the network in place of rules, then read it and verify what they made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from nf_resnets import roles

Init = Callable[..., Any]


def takes_network(*, alpha: bool = False) -> Callable[[Init], Init]:
    """Adds ``network=`` and ``inputs=`` to an initialiser ``init(params, ..., rules=None)``.

    With them the roles of the tree are read off ``network(params, *inputs)``
    (:func:`nf_resnets.roles.read`), and the initialised tree is verified
    (:func:`nf_resnets.roles.verify`).

    Args:
      alpha: whether the scalar that multiplies a branch is the scheme's alpha.

    Raises:
      ValueError: of the initialiser, if both ``network`` and ``rules`` are given, or ``inputs``
        without ``network``; and what reading and verifying raise.
    """

    def add(init: Init) -> Init:
        @functools.wraps(init)
        def initialize(
            *args: Any,
            network: Callable[..., Any] | None = None,
            inputs: tuple[Any, ...] = (),
            **options: Any,
        ) -> Any:
            if network is None:
                if inputs:
                    raise ValueError("inputs= found without network=; expected both.")
                return init(*args, **options)
            if options.get("rules") is not None:
                raise ValueError("network= and rules= found; expected one of them.")
            if not isinstance(inputs, tuple):
                raise TypeError(
                    f"inputs is a {type(inputs).__name__}; expected a tuple, such as (images,)."
                )
            params = args[0] if args else options["params"]
            role_map = roles.read(network, params, *inputs, alpha=alpha)
            result = init(*args, **options | {"rules": role_map})
            roles.verify(network, result, role_map, *inputs)
            return result

        signature = inspect.signature(init)
        added = inspect.signature(initialize, follow_wrapped=False).parameters
        parameters = [*signature.parameters.values(), added["network"], added["inputs"]]
        initialize.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return initialize

    return add


__all__ = ["takes_network"]
