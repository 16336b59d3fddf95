"""Timelines by hand, and pictures of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hadoppler import make_scheduler
from hadoppler.envs.cluster import Allocation, Cluster, ClusterView, Job, Workload, make_workload, simulate
from hadoppler.envs.cluster.render import draw_completion_times, draw_nodes, draw_use, job_colour, paint, time_unit
from hadoppler.envs.cluster.timeline import find_stays, timeline
from hadoppler.envs.pictures import line_style, save_figure

KIND = ("ResNet-18", 128)


class Alternating:
    """Job 0 on node 0 and, in odd rounds, job 1 on node 1 instead."""

    name, mixes, forks = "alternating", False, False

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        self.round = -1

    def schedule(self, view: ClusterView) -> Allocation:
        self.round += 1
        row = self.round % 2
        gpus = np.zeros_like(view.free)
        gpus[row, row] = 1 + row
        return Allocation.from_rows([(row, 0, gpus)] if row in view.job else [])


def test_a_timeline_by_hand() -> None:
    cluster = Cluster.parse("v100:2 k80:3")
    jobs = tuple(Job(str(i), 0.0, 1 + i, 1e9, *KIND) for i in range(2))
    result = simulate(Workload(jobs), cluster, Alternating(), round_s=100.0, restart_s=10.0, max_rounds=4)
    stays = find_stays(result.rounds)
    assert stays.job.tolist() == [0, 1, 0, 1]
    assert stays.start.tolist() == [0, 100, 200, 300]
    assert stays.end.tolist() == [100, 200, 300, 400]
    line = timeline(result, bins=8)
    assert line.edges.tolist() == [0, 50, 100, 150, 200, 250, 300, 350, 400]
    assert line.busy.tolist() == [[1, 1, 0, 0, 1, 1, 0, 0], [0, 0, 2, 2, 0, 0, 2, 2]]
    assert line.lane_node.tolist() == [0, 0, 1, 1, 1]
    assert line.lane_type.tolist() == [0, 0, 1, 1, 1]
    idle = [-1] * 8
    first, second = [0, 0, -1, -1, 0, 0, -1, -1], [-1, -1, 1, 1, -1, -1, 1, 1]
    assert line.lanes.tolist() == [first, idle, second, second, idle]
    coarse = timeline(result, bins=2)
    assert coarse.busy.tolist() == [[0.5, 0.5], [1, 1]], "a bin holds the mean of its time"
    assert timeline(result, bins=2, lanes=False).lanes.shape == (0, 2)


@pytest.mark.parametrize("early_refill", [False, True])
@pytest.mark.parametrize("name", ["yarn_cs", "gavel", "hadar"])
def test_busy_gpu_seconds_are_those_of_the_jobs(name: str, early_refill: bool) -> None:
    workload, cluster = make_workload("headline", jobs=25, seed=4, per_hour=3), Cluster.built_in("headline")
    result = simulate(workload, cluster, make_scheduler(name), early_refill=early_refill)
    line = timeline(result, bins=300)
    held = float((line.busy * np.diff(line.edges)).sum())
    assert held == pytest.approx(result.jobs.gpu_s.sum(), rel=1e-9)
    assert (line.busy <= cluster.gpus_of_type[:, None] * (1 + 1e-9)).all()
    # at every shown moment a running job has all of its GPUs
    for column in line.lanes.T:
        jobs, counts = np.unique(column[column >= 0], return_counts=True)
        assert counts.tolist() == workload.workers[jobs].tolist()


def test_reasons_that_come_and_go_stay_in_their_columns() -> None:
    class Talking(Alternating):
        def schedule(self, view: ClusterView) -> Allocation:
            allocation = super().schedule(view)
            return replace(allocation, why={"price": np.array([float(self.round)])} if self.round % 2 else {})

    jobs = tuple(Job(str(i), 0.0, 1 + i, 1e9, *KIND) for i in range(2))
    workload, cluster = Workload(jobs), Cluster.parse("v100:2 k80:3")
    result = simulate(workload, cluster, Talking(), explain=True, max_rounds=4)
    prices = [row["price"] for row in result.rounds.rows(workload, cluster)]
    assert prices[1::2] == [1, 3]
    assert np.isnan(prices[::2]).all()


def test_a_job_keeps_its_lane() -> None:
    workload = Workload(tuple(Job(str(i), 0.0, 1, (3 - i) * 5e4, *KIND) for i in range(3)))
    result = simulate(workload, Cluster.parse("v100:4"), make_scheduler("yarn_cs"))
    lanes = timeline(result, bins=50).lanes
    assert [sorted(set(lane.tolist())) for lane in lanes] == [[0], [-1, 1], [-1, 2], [-1]]


def test_pictures(tmp_path: Path) -> None:
    workload, cluster = make_workload("headline", jobs=8, seed=1), Cluster.built_in("headline")
    line = timeline(simulate(workload, cluster, make_scheduler("gavel")), bins=100)
    use = draw_use({"one": line, "_two$": line}, title="use")
    assert [axes.get_title(loc="left") for axes in use.axes] == ["one", r" _two\$"]
    assert use.axes[0].get_ylim()[1] == pytest.approx(63)
    nodes = draw_nodes(line, title="who", names=[job.id for job in workload.jobs])
    assert len(nodes.axes[0].get_yticks()) == 15
    assert nodes.axes[0].get_yticklabels()[0].get_text() == "n0 v100"
    assert len(nodes.axes[0].get_legend().get_texts()) == 8
    figure = draw_completion_times({"a": [1.0, 3.0], "none": []})
    steps = figure.axes[0].lines[0].get_xydata()
    assert steps.tolist() == [[1, 0], [1, 0.5], [3, 1]]
    for name, picture in {"use": use, "nodes": nodes, "times": figure}.items():
        save_figure(tmp_path / f"{name}.png", picture)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 3, "no temporary file stays"


def test_many_schedulers_have_their_legend_beside_the_lines() -> None:
    few, many = ({f"s{i}": [1.0 + i, 2.0 + i] for i in range(count)} for count in (8, 18))
    for jct, outside in ((few, False), (many, True)):
        figure = draw_completion_times(jct)
        figure.canvas.draw()
        axes = figure.axes[0]
        legend = axes.get_legend()
        assert len(legend.get_texts()) == len(jct)
        assert bool(legend.get_window_extent().x0 >= axes.get_window_extent().x1) is outside
        assert legend.get_window_extent().x1 <= figure.bbox.x1
        assert legend.get_window_extent().y0 >= 0
    assert len({str(line_style(number)) for number in range(40)}) == 40, "no two lines look alike"


def test_a_long_run_on_many_nodes_stays_a_picture() -> None:
    cluster = Cluster.parse("v100:8x200")
    job = Workload((Job("0", 0.0, 1, 1e6, *KIND),))
    figure = draw_nodes(timeline(simulate(job, cluster, make_scheduler("yarn_cs")), bins=20))
    assert figure.get_size_inches()[1] <= 40
    assert len(figure.axes[0].get_yticks()) <= 80


def test_an_empty_log_is_idle() -> None:
    workload, cluster = make_workload("gavel", jobs=3, seed=0), Cluster.built_in("headline")
    result = simulate(workload, cluster, make_scheduler("gavel"), mechanism="gavel")
    line = timeline(result, bins=5)
    assert not line.busy.any()
    assert (line.lanes == -1).all()


def test_colours_and_units() -> None:
    assert len({job_colour(job) for job in range(100)}) == 100
    image = paint(np.array([[0, 0, -1, 1, 0]], dtype=np.int32))
    assert image[0, 0].tolist() == pytest.approx([0.6 * part for part in job_colour(0)])
    assert image[0, 1].tolist() == list(job_colour(0))
    assert image[0, 3].tolist() == list(job_colour(1)), "a stay of one pixel keeps its colour"
    assert [time_unit(span)[1] for span in (10, 119, 120, 7199, 7200)] == ["s", "s", "min", "min", "h"]
