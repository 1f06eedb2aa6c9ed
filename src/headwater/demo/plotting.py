"""A plot of throughput and lag over a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headwater.demo.watching import SparkPhase, Status


def plot(seen: Sequence[Status], path: Path) -> bool:
    """Draw the samples to a PNG file. False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    from matplotlib import pyplot

    at = [status.seconds for status in seen]
    joined_s = next((status.seconds for status in seen if status.spark.phase is not SparkPhase.STARTING), at[-1])
    figure, (flows, lags) = pyplot.subplots(2, 1, figsize=(10, 6), sharex=True)
    flows.plot(at, [status.fed.per_second for status in seen], label="shop to streams")
    flows.plot(at, [status.spark.taken.per_second for status in seen], label="streams to Delta table")
    flows.plot(at, [status.published.per_second for status in seen], label="Delta table to stream")
    flows.plot(at, [status.table.per_second for status in seen], label="Delta table to STP table", linestyle="--")
    flows.set_title(
        "Events per second (changes of one key within a batch are published as one)", loc="left", fontsize=9
    )
    flows.legend(fontsize=8, loc="upper right")
    lags.plot(at, [status.spark.lag_s for status in seen], color="tab:red")
    lags.set_title(
        "Age in seconds of the oldest event that is not in the Delta table: less is better", loc="left", fontsize=9
    )
    lags.set_xlabel("seconds")
    for axis in (flows, lags):
        axis.axvspan(0, joined_s, color="0.92")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, at[-1] or 1)
        axis.spines[["top", "right"]].set_visible(False)
    lags.text(joined_s / 2, 0, "Spark is starting\n", ha="center", fontsize=8, color="0.4")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
