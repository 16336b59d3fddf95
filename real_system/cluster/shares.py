"""How the samples of a gang's step are divided: in proportion to the workers' speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def sample_shares(batch_size: int, workers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Samples of each rank in a step of ``workers`` batches, so that all ranks take equally long.

    Whole numbers in proportion to the speeds, largest remainders first; each rank gets at least one sample where there
    are enough.

    Args:
        batch_size: samples of one worker's batch.
        workers: batches in a step of the gang, one a rank.
        speeds: of the ranks, in any unit; above 0.
    """
    total = batch_size * workers
    speed = np.asarray(speeds, dtype=np.float64)
    exact = total * speed / speed.sum()
    shares = np.floor(exact).astype(np.int64)
    order = np.argsort(shares - exact, kind="stable")
    shares[order[: total - int(shares.sum())]] += 1
    for rank in np.flatnonzero(shares == 0) if total >= len(speed) else ():
        shares[np.argmax(shares)] -= 1
        shares[rank] = 1
    return tuple(int(share) for share in shares)
