"""DeepSeek V4 with DSpark: the working-memory optimizations that dsbench measures, each behind a toggle.

`impl.dims`, `impl.toggles`, `impl.kv_geometry` and `impl.handshake` import no torch.
"""

__version__ = "0.1.0"
