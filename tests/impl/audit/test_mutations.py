"""Watched operations write what they declare; false declarations are caught, registered or not."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import impl.model.draft
from impl.audit.mutations import (
    ON_GPU,
    REGISTERED,
    WRITES,
    Registration,
    Watch,
    check,
    operation_findings,
    registered_findings,
    registrations,
    watching,
)
from impl.audit.source import Source, sources
from impl.ops import mhc, packed_kv
from impl.ops.norm import rms_norm_
from impl.ops.workspace import Workspace
from tests.impl.ops.test_mhc import pending, seam_weights


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["operations called"] > 40
    assert outcome.evidence["operations that write"] > 20
    assert outcome.evidence["registered operations"] == 2


def test_a_plain_function_that_writes_in_place_passes():
    """The seam that reuses both buffers: unregistered, its writes are where its arguments say."""
    watch = Watch()
    residual, y, post, comb = pending(40, 64, 0)
    watched = watch.of("mhc.seam", mhc.seam)
    watched(residual, y, post, comb, seam_weights(64), residual_out=residual, input_out=y)
    assert watch.written["mhc.seam"] == {"residual", "y", "residual_out", "input_out"}
    assert list(watch.findings()) == []


@dataclass
class Record:
    values: list[Tensor]


def quiet(x: Tensor, record: Record) -> Tensor:
    return x + record.values[0]


def loud(x: Tensor, record: Record) -> Tensor:
    record.values[0].add_(1)
    return x + record.values[0]


def test_an_undeclared_write_is_found_wherever_the_tensor_is_held():
    watch = Watch()
    for fn in (quiet, loud):
        watch.of(fn.__name__, fn)(torch.zeros(3), Record([torch.zeros(3)]))
    (finding,) = watch.findings()
    assert (finding.code, finding.what.split()[0]) == ("undeclared-mutation", "loud")
    assert "'record'" in finding.what


def test_a_write_through_a_view_of_a_declared_argument_is_none_of_its_own():
    def scale_(x: Tensor, half: Tensor) -> None:
        x.mul_(2)

    watch, x = Watch(), torch.ones(8)
    watch.of("scale_", scale_)(x, x[:4])
    assert list(watch.findings()) == []
    watch.of("scale_", scale_)(torch.ones(8), x[:4])
    assert list(watch.findings()) == []


@pytest.mark.parametrize("name", sorted(WRITES))
def test_every_declaration_names_parameters_there_are(name):
    module, _, fn = name.partition(".")
    function = getattr(__import__(f"impl.ops.{module}", fromlist=[fn]), fn)
    assert set(WRITES[name]) <= set(function.__annotations__)


def test_a_declaration_left_out_is_found_where_the_operation_is_imported_by_name():
    watch = Watch({})
    workspace = Workspace()
    with watching(watch), workspace.scope():
        packed_kv.quantize_(torch.randn(4, 8), torch.zeros(4), torch.zeros(4, 8, dtype=torch.uint8))
        impl.model.draft.rms_norm_(torch.randn(4, 8), torch.full((1,), 1e-6), workspace)
    assert impl.model.draft.rms_norm_ is rms_norm_
    assert watch.calls["norm.rms_norm_"] == 1
    assert {finding.what.split("'")[1] for finding in watch.findings()} == {"scale", "codes"}


def test_a_declared_write_that_never_happens_is_found():
    watch = Watch({"quiet": ("x",)})
    watch.of("quiet", quiet)(torch.zeros(3), Record([torch.zeros(3)]))
    assert [finding.code for finding in watch.findings()] == ["declared-not-written"]


@torch.library.custom_op("dsbench_planted::false_seam", mutates_args=())
def false_seam(residual: Tensor, y: Tensor) -> None:
    residual.add_(y)


@torch.library.custom_op("dsbench_planted::true_seam", mutates_args=("residual",))
def true_seam(residual: Tensor, y: Tensor) -> None:
    residual.add_(y)


for _op in (false_seam, true_seam):
    _op.register_fake(lambda residual, y: None)


def arguments() -> tuple[Tensor, Tensor]:
    return torch.zeros(4), torch.ones(4)


def test_an_operation_registered_with_no_mutated_arguments_is_caught_twice():
    found = operation_findings(torch.ops.dsbench_planted.false_seam.default, arguments(), "here:1")
    assert [finding.code for finding in found] == ["opcheck", "false-schema"]
    assert "mutated" in found[0].what
    assert "'residual'" in found[1].what


def test_an_operation_with_a_true_schema_passes():
    assert operation_findings(torch.ops.dsbench_planted.true_seam.default, arguments(), "here:1") == []


@pytest.mark.parametrize(
    "text",
    [
        "from torch.library import custom_op as op\n@op('planted::f', mutates_args=())\ndef f(x): ...\n",
        "import torch.library as tl\n@tl.custom_op('planted::f', mutates_args=())\ndef f(x): ...\n",
        "from torch import library as tl\nop = tl.custom_op\nop('planted::f', f, mutates_args=())\n",
        "from torch.library import Library as L\nlib = L('planted::f', 'FRAGMENT')\n",
        "import torch\ntorch.library.define('planted::f', '(Tensor x) -> ()')\n",
        "import torch.library as tl\n(tl.Library)('planted::f', 'DEF')\n",
    ],
)
def test_registrations_are_found_by_any_name(text):
    found = registrations([Source("impl/ops/planted.py", text, ast.parse(text))])
    assert [registration.name for registration in found] == ["planted::f"]


def test_both_halves_of_a_library_are_registrations():
    text = "import torch\ntorch.library.Library('planted', 'DEF').define('f(Tensor x) -> ()')\n"
    found = registrations([Source("impl/ops/planted.py", text, ast.parse(text))])
    assert {registration.name for registration in found} == {"planted", "f(Tensor x) -> ()"}


def test_registrations_are_read_from_the_source_and_each_must_be_tried():
    text = (
        "import torch\n"
        "@torch.library.custom_op('dsbench_planted::false_seam', mutates_args=())\n"
        "def seam(a, b): ...\n"
        "direct_register_custom_op('other', seam, mutates_args=[])\n"
    )
    found = list(registrations([Source("impl/ops/planted.py", text, ast.parse(text))]))
    assert found == [
        Registration("dsbench_planted::false_seam", "impl/ops/planted.py:2"),
        Registration("other", "impl/ops/planted.py:4"),
    ]
    codes = [f.code for f in registered_findings(found, {"dsbench_planted::false_seam": arguments})]
    assert codes == ["opcheck", "false-schema", "unchecked-operation"]
    own = {registration.name for registration in registrations(sources())}
    assert own == REGISTERED.keys() == ON_GPU.keys()
