"""Real mutations against declared ones: what operations write, seen while an engine serves.

A plain function keeps its in-place writes visible to a tracer, so it needs no schema; what it declares is its name, its
parameters' names and `WRITES`. A registered operation declares its writes in a schema, and a schema that leaves one out
lets a compiler move reads across it. Source: source_pr.md section 8, vllm_hooks.md section 1.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import opcheck

import impl.ops
from impl.audit import trial
from impl.audit.bits import same
from impl.audit.dead_readers import REUSE
from impl.audit.report import Finding, Outcome
from impl.audit.source import Source, dotted, origins, place, sources

WRITES: Mapping[str, tuple[str, ...]] = {
    "attention.sink_attention": ("states", "out"),
    "draft_sample.draft_sample": ("kept",),
    "index_map.fill_local": ("rows", "lens"),
    "index_map.to_global": ("out", "lens"),
    "indexer.quantize_query": ("q", "codes", "folded"),
    "indexer.top_entries": ("scores", "out"),
    "insert.insert_states": ("states", "places"),
    "mhc.post_head": ("out", "mean"),
    "moe.experts": ("gate_up",),
    "packed_kv.gather": ("data", "scales"),
    "packed_kv.pack_states": ("x",),
    "packed_kv.quantize_": ("x", "scale", "codes"),
    "packed_kv.store": ("pages", "data", "scales"),
    "packed_kv.store_rows": ("pages",),
    "sampling.philox": ("counter",),
}
"""Written parameters that neither a trailing underscore (the first one) nor the name `out` tells; an empty tuple where
a name tells wrongly."""


def _scaling() -> tuple[Any, ...]:
    return torch.randn(9, 4, 4, device="cuda"), 6, 1e-6


def _scaling_grad() -> tuple[Any, ...]:
    logits, iters, eps = _scaling()
    return logits, *torch.ops.impl_train.scaled_softmax_parts(logits, iters, eps), torch.randn_like(logits), iters, eps


REGISTERED: Mapping[str, Callable[[], tuple[Any, ...]]] = {
    "impl_train::scaled_softmax_parts": _scaling,
    "impl_train::scaled_softmax_grad": _scaling_grad,
}
"""Arguments to try each registered operation of this package on, by qualified name. None of them is served."""

ON_GPU = {name: "impl.train.sinkhorn_triton" for name in REGISTERED}
"""Operations that only a GPU can run, and the modules that register them."""

_REGISTERS = {"custom_op", "triton_op", "direct_register_custom_op", "Library", "define"}
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


class Watch:
    """Compares the tensor arguments of watched functions before and after each call."""

    def __init__(self, writes: Mapping[str, tuple[str, ...]] = WRITES) -> None:
        self.writes = writes
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.written: defaultdict[str, set[str]] = defaultdict(set)
        """Per function: parameters whose bytes changed in some call."""
        self.undeclared: defaultdict[str, set[str]] = defaultdict(set)
        self.places: dict[str, str] = {}

    def of(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(fn)
        declared = self.declared(name, fn)
        self.places[name] = place(fn)

        @functools.wraps(fn)
        def watched(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            leaves = {parameter: list(_tensors(value)) for parameter, value in bound.items()}
            before = {parameter: [leaf.clone() for leaf in found] for parameter, found in leaves.items()}
            result = fn(*args, **kwargs)
            self.calls[name] += 1
            changed = {
                parameter
                for parameter, found in leaves.items()
                if not all(same(now, then) for now, then in zip(found, before[parameter], strict=True))
            }
            self.written[name] |= changed
            allowed = [leaf for parameter in declared for leaf in leaves.get(parameter, ())]
            self.undeclared[name] |= {
                parameter
                for parameter in changed - set(declared)
                if not any(_overlap(leaf, other) for leaf in leaves[parameter] for other in allowed)
            }
            return result

        return watched

    def declared(self, name: str, fn: Callable[..., Any]) -> tuple[str, ...]:
        """Parameters that a function says it writes."""
        if name in self.writes:
            return self.writes[name]
        parameters = list(inspect.signature(fn).parameters)
        first = parameters[:1] if fn.__name__.endswith("_") else []
        return tuple(first + [p for p in parameters if p == "out" or p.endswith("_out")])

    def findings(self) -> Iterator[Finding]:
        for name, parameters in sorted(self.undeclared.items()):
            for parameter in sorted(parameters):
                yield Finding(
                    "undeclared-mutation",
                    f"{name} writes its argument '{parameter}', which nothing about it declares",
                    self.places[name],
                    "name the parameter out, or the function with a trailing underscore, or enter it in WRITES",
                )
        for name in sorted(self.writes.keys() & self.calls.keys()):
            if self.writes[name] and not self.written[name] & set(self.writes[name]):
                yield Finding(
                    "declared-not-written",
                    f"WRITES says that {name} writes {', '.join(self.writes[name])}; no call of the trial did",
                    self.places[name],
                    "take the entry out of WRITES",
                )


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Put `watch` around every public function of impl.ops, under every name that impl's modules know it by."""
    wrappers: dict[Any, Callable[..., Any]] = {}
    for module in _modules():
        for name, fn in vars(module).items():
            if inspect.isfunction(fn) and fn.__module__ == module.__name__ and not name.startswith("_"):
                wrappers[fn] = watch.of(f"{module.__name__.removeprefix('impl.ops.')}.{name}", fn)
    patched: list[tuple[ModuleType, str, Any]] = []
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("impl.") and not module_name.startswith("impl.audit"):
            for name, value in list(vars(module).items()):
                if inspect.isfunction(value) and value in wrappers:
                    patched.append((module, name, value))
                    setattr(module, name, wrappers[value])
    try:
        yield
    finally:
        for module, name, value in patched:
            setattr(module, name, value)


def check() -> Outcome:
    watch = Watch()
    runners = trial.engine(REUSE), trial.engine()
    with watching(watch):
        for runner in runners:
            trial.serve(runner)
    findings = list(watch.findings())
    registered = list(registrations(sources()))
    tried = [registration for registration in registered if registration.name not in ON_GPU or _gpu()]
    findings += registered_findings(tried, REGISTERED)
    return Outcome(
        tuple(findings),
        {
            "operations called": len(watch.calls),
            "calls compared": sum(watch.calls.values()),
            "operations that write": sum(bool(parameters) for parameters in watch.written.values()),
            "registered operations": len(registered),
            "of these not tried, for want of a GPU": len(registered) - len(tried),
        },
    )


@dataclasses.dataclass(frozen=True)
class Registration:
    name: str
    """namespace::operation, or what of it the source says"""
    where: str


def registrations(tree: list[Source]) -> Iterator[Registration]:
    """Calls that register an operation with torch, read from the source: none may be missed for not being imported."""
    for source in tree:
        names = origins(source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and (called := _called(node, names)) in _REGISTERS:
                if called == "define" and "torch" not in source.text:
                    continue
                literal = next((a.value for a in node.args if isinstance(a, ast.Constant)), called)
                yield Registration(str(literal), source.at(node))


def registered_findings(
    found: list[Registration], arguments: Mapping[str, Callable[[], tuple[Any, ...]]]
) -> list[Finding]:
    """Every registered operation, on its trial arguments."""
    findings = []
    for registration in found:
        make = arguments.get(registration.name)
        if make is None:
            findings.append(
                Finding(
                    "unchecked-operation",
                    f"operation '{registration.name}' is registered, and the audit has no arguments to try it on",
                    registration.where,
                    "add it to REGISTERED in impl/audit/mutations.py",
                )
            )
            continue
        if registration.name in ON_GPU:
            importlib.import_module(ON_GPU[registration.name])
        namespace, _, name = registration.name.partition("::")
        op = getattr(getattr(torch.ops, namespace), name).default
        findings += operation_findings(op, make(), registration.where)
    return findings


def operation_findings(op: torch._ops.OpOverload, args: tuple[Any, ...], where: str) -> list[Finding]:
    """One registered operation: torch's own check, and its arguments' bytes before and after."""
    findings = []
    results = opcheck(op, args, test_utils=OPCHECKS, raise_exception=False)
    for test, result in results.items():
        if isinstance(result, BaseException):
            findings.append(
                Finding(
                    "opcheck",
                    f"{op} fails {test}: {' '.join(str(result).split())[:160]}",
                    where,
                    "declare in mutates_args what it writes, or leave it a plain function",
                )
            )
    declared = {a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    before = [arg.clone() if isinstance(arg, Tensor) else None for arg in args]
    op(*args)
    for argument, now, then in zip(op._schema.arguments, args, before, strict=False):
        if then is not None and argument.name not in declared and not same(now, then):
            findings.append(
                Finding(
                    "false-schema",
                    f"{op} writes '{argument.name}', and its schema says that it does not",
                    where,
                    f"register it with mutates_args naming '{argument.name}', or leave it a plain function",
                )
            )
    return findings


def _gpu() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def _modules() -> Iterator[ModuleType]:
    """impl.ops' modules; one whose own requirement is not installed here cannot run here either."""
    for info in pkgutil.iter_modules(impl.ops.__path__, "impl.ops."):
        try:
            yield importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.startswith("impl"):
                raise


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of an argument: itself, or in a list, tuple, dictionary or record."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _tensors([getattr(value, field.name) for field in dataclasses.fields(value)])


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors' bytes may meet: by first and last byte in one storage."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (first_a, last_a), (first_b, last_b) = _extent(a), _extent(b)
    return first_a < last_b and first_b < last_a


def _extent(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    return first, first + int(last + 1) * size if tensor.numel() else first


def _called(node: ast.Call, names: dict[str, str]) -> str:
    """The last name of what is called, whatever the module calls it; a method's own name where its owner is a value."""
    path = dotted(node.func, names)
    return path.rpartition(".")[2] if path else getattr(node.func, "attr", "")
