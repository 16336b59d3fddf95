"""How a gang's samples are divided."""

from __future__ import annotations

import numpy as np
import pytest

from hadoppler.real_system.cluster.shares import sample_shares


@pytest.mark.parametrize(
    ("batch_size", "workers", "speeds", "shares"),
    [
        (32, 1, [7.0], (32,)),
        (32, 4, [1, 1, 1, 1], (32, 32, 32, 32)),
        (16, 2, [3, 1], (24, 8)),
        (10, 4, [1, 1, 1, 0.2], (13, 13, 12, 2)),  # 12.5, 12.5, 12.5, 2.5: the remainders' first ranks
        (32, 4, [1.0, 0.9, 0.5, 0.1], (51, 46, 26, 5)),  # 51.2, 46.08, 25.6, 5.12
        (4, 2, [1000, 1], (7, 1)),  # nobody has nothing
        (1, 3, [1, 1, 100], (1, 1, 1)),
        (2, 1, [5, 3, 1], (1, 1, 0)),  # unless there are not enough
    ],
)
def test_in_proportion(batch_size: int, workers: int, speeds: list[float], shares: tuple[int, ...]) -> None:
    assert sample_shares(batch_size, workers, speeds) == shares


def test_whole_samples_near_the_exact_proportion() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        workers = int(draw.integers(1, 9))
        batch_size = int(draw.integers(8, 65))
        speeds = draw.uniform(0.3, 1, workers)
        shares = sample_shares(batch_size, workers, speeds.tolist())
        exact = batch_size * workers * speeds / speeds.sum()
        assert sum(shares) == batch_size * workers
        assert np.abs(np.array(shares) - exact).max() < 1
