import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.dims import FLASH, PICO
from impl.toggles import REGISTRY, ToggleError, ToggleSet, find

MIB = 1 << 20
CORRECT = {name for name, toggle in REGISTRY.items() if toggle.default_on}


def test_expected_bytes_at_flash_are_the_published_buffers():
    sizes = {name: toggle.expected_bytes(FLASH) // MIB for name, toggle in REGISTRY.items() if toggle.expected_bytes}
    assert sizes == {
        "mtp_hidden_skip": 256,
        "mhc_final_fused": 256,
        "mhc_residual_reuse": 256,
        "mhc_input_reuse": 64,
        "dflash_staging_skip": 64,
    }


def test_expected_bytes_follow_the_shape():
    wider = PICO.with_changes(max_num_batched_tokens=512, hidden_size=128)
    assert REGISTRY["mhc_input_reuse"].expected_bytes(PICO) == 256 * 64 * 2
    assert REGISTRY["mhc_input_reuse"].expected_bytes(wider) == 512 * 128 * 2


def test_every_reference_in_the_registry_names_a_toggle():
    for toggle in REGISTRY.values():
        for name in toggle.requires + toggle.conflicts:
            assert find(name).name == name
        assert toggle.summary
        assert toggle.reference


@given(st.sets(st.sampled_from([name for name, t in REGISTRY.items() if not t.requires])))
def test_text_round_trip(names):
    toggles = ToggleSet(names)
    assert ToggleSet.parse(str(toggles)) == toggles
    assert set(toggles.names()) == names | CORRECT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mhc_input_resue", "unknown toggle 'mhc_input_resue': did you mean mhc_input_reuse"),
        ("zzz", "unknown toggle 'zzz': 'dsbench toggles' lists them"),
        ("mhc_input_reuse=maybe", "the state must be on or off, got 'maybe'"),
        ("mhc_final_fused", "needs 'mtp_hidden_skip' on too"),
        ("mhc_input_reuse=off", "it is off unless named"),
    ],
)
def test_errors_name_the_thing_and_the_mend(text, message):
    with pytest.raises(ToggleError, match=message.replace("(", r"\(")) as error:
        ToggleSet.parse(text)
    assert "\n" not in str(error.value)


def test_blanks_and_empty_entries_are_nothing():
    assert ToggleSet.parse(" , mhc_input_reuse ,") == ToggleSet(["mhc_input_reuse"])
    assert ToggleSet.parse("") == ToggleSet()


def test_controls_are_told_apart():
    assert ToggleSet.parse("mhc_input_reuse").controls() == ()
    assert ToggleSet.parse("residual_reuse_small_path").controls() == ("residual_reuse_small_path",)


def test_an_unregistered_question_raises():
    with pytest.raises(ToggleError):
        ToggleSet().on("nothing_such")
