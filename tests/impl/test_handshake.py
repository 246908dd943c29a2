import json
import subprocess
import sys

import pytest

from impl.handshake import ENVIRONMENT, Handshake, Markers
from impl.toggles import ToggleError


def read(path):
    return json.loads(path.read_text())


def test_files_of_one_rank(tmp_path):
    handshake = Handshake(tmp_path, rank=1)
    markers = Markers()
    markers.take("mhc_input_reuse")
    markers.take("mhc_input_reuse")
    markers.refuse("mhc_residual_reuse", "workspace memory")
    markers.skip("mhc_residual_reuse", "small-token path")
    handshake.conditions({"seed": 7})
    handshake.kv_profile({"weights_bytes": 5})
    handshake.markers(markers)
    handshake.ready("127.0.0.1", 8000)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "conditions.rank1.json", "kv_profile.rank1.json", "markers.rank1.json", "ready.json",
    ]  # fmt: skip
    content = read(tmp_path / "markers.rank1.json")
    assert (content["schema"], content["rank"]) == (1, 1)
    assert content["toggles"] == {
        "mhc_input_reuse": {"taken": 2, "refused": {}, "skipped": {}},
        "mhc_residual_reuse": {
            "taken": 0,
            "refused": {"workspace memory": 1},
            "skipped": {"small-token path": 1},
        },
    }
    assert read(tmp_path / "conditions.rank1.json")["seed"] == 7
    assert read(tmp_path / "ready.json")["port"] == 8000


def test_without_a_boot_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.chdir(tmp_path)
    handshake = Handshake.from_environment()
    handshake.conditions({"seed": 7})
    handshake.ready("127.0.0.1", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_boot_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="which is no folder"):
        Handshake.from_environment()


def test_markers_can_be_held_back(tmp_path):
    handshake, markers = Handshake(tmp_path), Markers()
    handshake.markers(markers, at_most_every_s=60)
    markers.take("mhc_input_reuse")
    handshake.markers(markers, at_most_every_s=60)
    assert read(tmp_path / "markers.rank0.json")["toggles"] == {}
    handshake.markers(markers)
    assert read(tmp_path / "markers.rank0.json")["toggles"]["mhc_input_reuse"]["taken"] == 1


def test_a_marker_of_no_toggle_is_a_programming_error():
    markers = Markers()
    markers.take("mhc_input_resue")
    with pytest.raises(ToggleError):
        markers.to_json()


def test_the_contract_modules_import_no_torch():
    code = "import sys, impl.dims, impl.toggles, impl.handshake, impl.kv_geometry; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
