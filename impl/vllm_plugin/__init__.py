"""Our toggles in unmodified vLLM: the `vllm.general_plugins` entry point `dsbench` (torch-free at import).

vLLM calls `register` in every process. It touches no GPU and imports none of vLLM's model code: it arranges that named
modules are patched right after their import, for the toggles of `DSBENCH_TOGGLES`.
"""


def register() -> None:
    """Arrange the patches of this process. SystemExit 2, with one line on stderr, for toggles that cannot run."""
    from impl.vllm_plugin.install import install

    install()


__all__ = ["register"]
