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
    (:func:`nf_resnets.roles.verify`). ``alpha`` says that the scalar that multiplies a branch is
    the scheme's alpha.
    """

    def add(init: Init) -> Init:
        @functools.wraps(init)
        def initialize(
            params: Any,
            *args: Any,
            network: Callable[..., Any] | None = None,
            inputs: tuple[Any, ...] = (),
            **options: Any,
        ) -> Any:
            if network is None:
                return init(params, *args, **options)
            if options.get("rules") is not None:
                raise ValueError("network= and rules= found; expected one of them.")
            role_map = roles.read(network, params, *inputs, alpha=alpha)
            result = init(params, *args, **options | {"rules": role_map})
            roles.verify(network, result, role_map, *inputs)
            return result

        signature = inspect.signature(init)
        added = inspect.signature(initialize, follow_wrapped=False).parameters
        parameters = [*signature.parameters.values(), added["network"], added["inputs"]]
        initialize.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return initialize

    return add


__all__ = ["takes_network"]
