"""For a functional aten operation, the call that writes the same result into given tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_FROM_OUT = {"dtype", "layout", "device", "pin_memory"}
"""Arguments that an out= overload may lack, because the tensor it writes has them."""
_COPIES = {"_to_copy", "clone"}
"""Plain copies: their generated out= overloads would make one more temporary."""

OutCall = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def out_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any], targets: Sequence[Tensor]) -> OutCall | None:
    """(callable, args, kwargs) of the out= form of `func(*args, **kwargs)`; None if it has none.

    The caller checks the bits: an overload may compute in another order than the functional form.
    """
    if func.overloadpacket.__name__ in _COPIES:
        return torch.ops.aten.copy_.default, (targets[0], args[0]), {}
    overload = out_overload(func)
    if overload is None:
        return None
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    positional, named = [], {}
    remaining = iter(targets)
    for argument in overload._schema.arguments:
        if _is_out(argument):
            named[argument.name] = next(remaining)
        elif not argument.kwarg_only:
            positional.append(given.get(argument.name, argument.default_value))
        elif argument.name in given:
            named[argument.name] = given[argument.name]
    return overload, tuple(positional), named


@cache
def out_overload(func: Any) -> Any:
    """The overload with the arguments of `func` and one written tensor for each of its results, or None."""
    wanted = {argument.name: str(argument.type) for argument in func._schema.arguments}
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = overload._schema.arguments
        outs = [a for a in arguments if _is_out(a)]
        rest = {a.name: str(a.type) for a in arguments if not _is_out(a)}
        if (
            len(outs) == len(func._schema.returns) > 0
            and all(a.kwarg_only and str(a.type) == "Tensor" for a in outs)
            and rest.items() <= wanted.items()
            and wanted.keys() - rest.keys() <= _FROM_OUT
        ):
            return overload
    return None


def _is_out(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
