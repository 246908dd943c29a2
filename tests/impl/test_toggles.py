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
        "c128a_topk_shared": 128,
        "q_in_place": 512,
        "c128_indices_in_place": 128,
    }


def test_what_an_outputs_exactness_does_not_cover_is_told_with_it():
    told = {
        name: toggle.exactness_told for name, toggle in REGISTRY.items() if toggle.exactness_told != toggle.exactness
    }
    assert told == {
        "mhc_final_fused": "bitwise; in vLLM the head within one rounding step",
        "c128_indices_in_place": "bitwise; unverified on SM120",
    }
    assert all(bool(toggle.unverified_on) == bool(toggle.verified_by) for toggle in REGISTRY.values())


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


PLAIN = [name for name, t in REGISTRY.items() if not t.requires and t.argument is None]
WITH_ARGUMENT = [toggle for toggle in REGISTRY.values() if toggle.argument is not None]


def values(toggle):
    """Any argument that a toggle takes."""
    what = toggle.argument
    numbers = st.integers(int(what.least), int(what.most)) if what.whole else st.floats(what.least, what.most)
    return st.tuples(st.just(toggle.name), numbers)


@given(st.sets(st.sampled_from(PLAIN)), st.lists(st.sampled_from(WITH_ARGUMENT).flatmap(values), max_size=4))
def test_text_round_trip(names, arguments):
    arguments = dict(arguments)
    toggles = ToggleSet([*names, *(f"{name}:{value!r}" for name, value in arguments.items())])
    assert ToggleSet.parse(str(toggles)) == toggles
    assert hash(ToggleSet.parse(str(toggles))) == hash(toggles)
    assert set(toggles.names()) == names | CORRECT | arguments.keys()
    assert {name: toggles.argument(name) for name in arguments} == arguments


def test_arguments_tell_sets_apart_and_only_their_toggles_have_one():
    assert ToggleSet.parse("leak:1") != ToggleSet.parse("leak:2")
    assert str(ToggleSet.parse(" leak:64 , slow_step:2.50")) == "slow_step:2.5,leak:64"
    assert ToggleSet.parse("leak:64").controls() == ("leak",)
    assert find("leak:64") is REGISTRY["leak"]
    with pytest.raises(KeyError):
        ToggleSet.parse("mtp_hidden_skip").argument("mtp_hidden_skip")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mhc_input_resue", "unknown toggle 'mhc_input_resue': did you mean mhc_input_reuse"),
        ("zzz", "unknown toggle 'zzz': 'dsbench toggles' lists them"),
        ("mhc_input_reuse=maybe", "the state must be on or off, got 'maybe'"),
        ("mhc_final_fused", "needs 'mtp_hidden_skip' on too"),
        ("mhc_input_reuse=off", "it is off unless named"),
        ("leak:64=off", "'leak=off' says nothing: it is off unless named"),
        ("leak", "toggle 'leak' needs its argument: write leak:BYTES, kept by every step"),
        ("leak:", "write leak:BYTES"),
        ("leak:2.5", "toggle 'leak:2.5': BYTES must be a whole number from 1 to"),
        ("c128_row_corrupt:0", "N must be a whole number from 1 to"),
        ("slow_step:nan", "P must be a number from 0.1 to 1000, per cent of a step's time"),
        ("slow_step:fast", "toggle 'slow_step:fast': P must be a number"),
        ("leek:64", "unknown toggle 'leek': did you mean leak"),
        ("leak:1,leak:2", "is there with 1 and with 2; name it once"),
        ("mhc_input_reuse:3", "takes no argument, got '3': leave ':3' out"),
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
