"""A cached copy of vLLM's sources counts while it holds every module that is read now."""

import pytest

from tests.impl.vllm_plugin import fetch_sources


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("DSBENCH_VLLM_SOURCES", str(tmp_path))
    monkeypatch.delenv("DSBENCH_VLLM_FETCH", raising=False)

    def put(*lines):
        (tmp_path / "0.26.0").mkdir()
        (tmp_path / "0.26.0/complete").write_text("\n".join(["vllm-0.26.0.whl", *lines]) + "\n")
        return tmp_path / "0.26.0"

    return put


def test_a_whole_copy_is_taken(cached):
    folder = cached(*fetch_sources.KEEP)
    assert fetch_sources.sources("0.26.0") == folder


@pytest.mark.parametrize("kept", [(), fetch_sources.KEEP[1:]], ids=["of before modules were listed", "one short"])
def test_a_copy_that_lacks_a_module_is_not(kept, cached):
    cached(*kept)
    with pytest.raises(fetch_sources.Unfetched, match=r"no sources of vLLM 0\.26\.0 are cached"):
        fetch_sources.sources("0.26.0")
