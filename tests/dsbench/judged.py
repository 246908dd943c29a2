"""What tests of verdicts share: names, one row of a verdict, and readings that replace others."""

PRIMARY = "kv.peak_activation_bytes"


def row(verdict, metric, arm=None):
    (found,) = [r for r in verdict.rows if r.metric == metric and arm in (None, r.arm)]
    return found


def on(metric, arm, value):
    """Readings that replace one metric of one arm: a value, or a function of the boot."""
    return lambda boot, key: (value(boot) if callable(value) else value) if (key, boot.arm) == (metric, arm) else None


CANDIDATE = "mhc_input_reuse"
BOTH = ("mhc_residual_reuse", "mhc_input_reuse")
