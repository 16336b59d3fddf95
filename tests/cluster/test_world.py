"""Jobs, clusters, throughput tables, generators: what they accept, what they refuse, what they tell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from hadoppler.envs.cluster import Cluster, Job, ThroughputTable, Workload, make_workload
from hadoppler.envs.cluster.generators import GENERATORS
from hadoppler.envs.cluster.throughput import DATA
from hadoppler.envs.errors import ClusterError, ThroughputError, TraceError, UnknownNameError

ROOT = Path(__file__).resolve().parents[2]


def test_cluster_in_one_line() -> None:
    cluster = Cluster.parse("v100:4x2 p100:2+k80:1 t4:8")
    assert cluster.types == ("v100", "p100", "k80", "t4")
    assert cluster.capacity.tolist() == [[4, 0, 0, 0], [4, 0, 0, 0], [0, 2, 1, 0], [0, 0, 0, 8]]
    assert [node.name for node in cluster.nodes] == ["n0", "n1", "n2", "n3"]
    assert (cluster.gpus, cluster.gpus_of_type.tolist()) == (19, [8, 2, 1, 8])


@pytest.mark.parametrize("text", ["v100", "v100:", "v100:4x", "v100:-1", "v100:4y3", "", "v100:0"])
def test_bad_cluster_text_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"expected|no node|give"):
        Cluster.parse(text)


def test_built_in_clusters() -> None:
    headline = Cluster.built_in("headline")
    assert headline.capacity.shape == (15, 3)
    assert headline.gpus_of_type.tolist() == [20, 20, 20]
    assert Cluster.parse("equal5").gpus == 5
    assert sorted(Cluster.built_in("aws_like").relative_speed.values()) == [0.14, 0.45, 1.0]
    assert len(Cluster.built_in("lab_like").types) == 5
    with pytest.raises(UnknownNameError, match="lab_like"):
        Cluster.built_in("lab_lik")


def test_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: mine\nnodes:\n  - {gpus: {a100: 4, t4: 1}, count: 2}\n  - {name: old, gpus: 2, gpu_type: t4}\n"
    )
    cluster = Cluster.from_yaml(path)
    assert (cluster.name, cluster.capacity.tolist()) == ("mine", [[4, 1], [4, 1], [0, 2]])
    again = Cluster.from_dict(cluster.to_dict())
    assert again.nodes == cluster.nodes


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nodes: []", "nodes is missing"),
        ("nodes:\n  - {gpu: 4}", "unknown key 'gpu'; did you mean gpus"),
        ("nodes:\n  - {gpus: 4}", "gpus is 4"),
        ("nodes:\n  - {gpus: {a: 1.5}}", "whole numbers"),
        ("nodes:\n  - {name: x, gpus: {a: 1}}\n  - {name: x, gpus: {a: 1}}", "two nodes are called 'x'"),
        ("nodes:\n  - {gpus: {a: 1}}\nrelative_speed: {b: 1.0}", "relative_speed of 'b'"),
        ("- 1", "expected the key nodes"),
        ("a: [", "is not YAML"),
    ],
)
def test_bad_cluster_file_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(ClusterError, match=named.replace("'", ".")):
        Cluster.from_yaml(path)


def test_default_table_has_gavels_figures_and_their_notice() -> None:
    table = ThroughputTable.default()
    assert table.types == ("v100", "p100", "k80")
    together, spread = table.job_rates("LM (batch size 5)", 8)
    assert together == pytest.approx([698.77329296, 133.52408996, 76.86310559])
    assert spread == pytest.approx([73.11997842, 94.884478, 63.186653])
    assert table.job_rates("ResNet-50 (batch size 128)", 4)[0][2] == 0
    assert "MIT" in (DATA / "GAVEL_NOTICE.txt").read_text()
    assert "GAVEL_NOTICE" in (DATA / "throughputs.csv").read_text()
    assert ThroughputTable.default(physical=True).job_rates("Recommendation (batch size 512)", 1)[0][0] > 200


def test_spread_rates_are_never_above_those_in_one_node() -> None:
    table = ThroughputTable.default()
    for kind, workers in table.rows:
        together, spread = table.job_rates(kind, workers)
        assert (spread <= together).all()
        assert (spread >= 0).all()


def test_rates_between_and_beyond_the_measured_worker_counts() -> None:
    table = ThroughputTable.build([("m", 1, "a", 10.0, np.nan), ("m", 4, "a", 28.0, 20.0), ("z", 2, "a", 0.0, np.nan)])
    assert table.job_rates("m", 2)[0].tolist() == [16.0]
    assert table.job_rates("m", 8)[0].tolist() == [56.0]
    assert table.job_rates("m", 8)[1].tolist() == [40.0]
    assert table.job_rates("m", 3)[1].tolist() == [pytest.approx(0.8 * 22.0)]
    assert table.job_rates("z", 4)[0].tolist() == [0.0]


def test_own_table_is_read() -> None:
    table = ThroughputTable.read(DATA / "samples" / "own_throughputs.csv")
    assert table.job_rates("MyNet (batch size 32)", 4)[1].tolist() == [39.0, 8.1]


@pytest.mark.parametrize("counts", [(1, 2), (1, 4), (2,), (4, 8), (1, 2, 4, 8)])
def test_each_type_is_measured_with_numbers_of_workers_of_its_own(counts: tuple[int, ...]) -> None:
    """What a type tells, it tells as in a table of its own; a type that tells nothing does not fit."""
    own = [("m", count, "b", 5.0 * count**0.5, np.nan) for count in counts]
    others = [("m", count, "a", 10.0 * count, 7.0 * count) for count in (1, 2, 4, 8)]
    alone, both = ThroughputTable.build(own), ThroughputTable.build([*others, *own, ("z", 1, "a", 1.0, np.nan)])
    for workers in range(1, 17):
        assert [rates[1] for rates in both.job_rates("m", workers)] == [
            rates[0] for rates in alone.job_rates("m", workers)
        ]
        assert both.job_rates("m", workers)[0][0] == pytest.approx(10.0 * workers)
    assert both.job_rates("z", 2)[0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize("row", ["MyNet,32,1,b200,3,,9", "MyNet,32,1,b200,3,5,"])
def test_rates_with_a_cell_too_many_are_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(f"model,batch_size,workers,gpu_type,steps_per_s,spread_steps_per_s\n{row}\n")
    with pytest.raises(ThroughputError, match="line 2: it has more cells than the header"):
        ThroughputTable.read(path)


def test_gavels_json(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    key, one = "('m', 2)", "('m', 1)"
    values = {"v100": {key: {"null": 4.0}, one: {"null": 3.0}}, "v100_unconsolidated": {key: {"null": 1.5}}}
    path.write_text(json.dumps(values))
    table = ThroughputTable.read(path)
    assert table.types == ("v100",)
    assert [values.tolist() for values in table.job_rates("m", 2)] == [[4.0], [1.5]]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model,workers,steps_per_s\nm,1,2\n", "gpu_type"),
        ("model,batch_size,workers,gpu_type,steps_per_s\nm,,one,a,2\n", "line 2"),
        ("model,batch_size,workers,gpu_type,steps_per_s\nm,,1,a,-2\n", "expected numbers from 0"),
        ("model,batch_size,workers,gpu_type,steps_per_s\nm,,1,a,2\nm,,1,a,3\n", "twice"),
        ("model,workers,gpu_type,steps_per_s,workers\nm,1,a,2,4\n", "'workers' stands there twice"),
        ('{"v100": {"m": 3}}', "cannot read it as Gavel"),
        ('{"v100": ', "is not JSON"),
    ],
)
def test_bad_table_names_the_place(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ThroughputError, match=named):
        ThroughputTable.read(path)


def test_relative_speeds_stand_for_types_that_the_table_lacks() -> None:
    workload = make_workload("physical", jobs=3)
    cluster = Cluster.built_in("aws_like")
    rates, _ = workload.rates(cluster)
    reference = [workload.throughputs.job_rates(job.kind, 1)[0][0] for job in workload.jobs]
    assert rates == pytest.approx(np.outer(reference, [1.0, 0.45, 0.14]))
    with pytest.raises(ThroughputError, match="no GPU type 'h100'"):
        workload.rates(Cluster.parse("h100:4"))


@pytest.mark.parametrize(
    "change", [{"arrival": -1.0}, {"arrival": np.nan}, {"workers": 0}, {"steps": 0.0}, {"weight": -1}]
)
def test_impossible_jobs_are_refused(change: dict) -> None:
    values = {"id": "x", "arrival": 0.0, "workers": 1, "steps": 1.0, "model": "LM"}
    with pytest.raises(TraceError, match=next(iter(change))):
        Job(**{**values, **change})


def test_jobs_stand_by_arrival_and_ids_are_unique() -> None:
    jobs = (Job("b", 5.0, 1, 1.0, "A3C"), Job("a", 1.0, 1, 1.0, "A3C"), Job("c", 1.0, 1, 1.0, "A3C"))
    assert [job.id for job in Workload(jobs).jobs] == ["a", "c", "b"]
    with pytest.raises(TraceError, match="two jobs have the id 'a'"):
        Workload((*jobs, jobs[1]))


@pytest.mark.parametrize("name", ["headline", "gavel", "gavel_trace", "physical"])
def test_generators_repeat_and_follow_their_distributions(name: str) -> None:
    workload, again = make_workload(name, jobs=400, seed=3), make_workload(name, jobs=400, seed=3)
    assert workload.jobs == again.jobs
    assert workload.jobs != make_workload(name, jobs=400, seed=4).jobs
    assert (workload.arrival == 0).all()
    shares = [(workload.workers == count).mean() for count in (1, 2, 4, 8)]
    expected = {"headline": (0.7, 0.1, 0.15, 0.05), "physical": (1, 0, 0, 0)}.get(name)
    if expected:
        assert shares == pytest.approx(expected, abs=0.06)
    poisson = make_workload(name, jobs=400, seed=3, per_hour=2.0)
    assert poisson.arrival[0] == 0
    assert poisson.arrival[-1] / 3600 == pytest.approx(200, rel=0.15)


def test_headline_sizes_and_types() -> None:
    workload = make_workload("headline", jobs=1000, seed=1)
    rates, _ = workload.rates(Cluster.built_in("headline"))
    assert (rates > 0).all()
    hours = workload.steps / rates[:, 0] * workload.workers / 3600
    edges = np.array([0.04, 1.0001, 10.001, 50.01, 59.9, 100.1])
    counts = np.histogram(hours, edges)[0]
    assert counts[[0, 1, 2, 4]] / 1000 == pytest.approx([0.25] * 4, abs=0.05)
    assert counts[3] == 0


def test_the_page_names_all_generators_as_both_call_them() -> None:
    """The rows of docs/cluster.md: settings of the command line, and what Python draws by them."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| `(\"[^`]+)` \|", page, flags=re.MULTILINE)
    names = set()
    for words, arguments in rows:
        choice, *settings = words.split()
        config = yaml.safe_load((ROOT / "conf" / "workload" / f"{choice}.yaml").read_text(encoding="utf-8"))
        assert config.pop("_target_") == "hadoppler.envs.cluster.make_workload"
        config |= dict(word.removeprefix("workload.").split("=") for word in settings)
        drawn = eval(f"make_workload({arguments}, jobs=5, seed=3)", {"make_workload": make_workload})
        assert make_workload(**{**config, "jobs": 5, "seed": 3}).jobs == drawn.jobs
        names.add(config["name"])
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "conf" / "workload").glob("*.yaml")]
    assert names == set(GENERATORS)
    assert len({words.split()[0] for words, _ in rows}) == sum(".make_workload" in text for text in files)


def test_generator_errors() -> None:
    with pytest.raises(UnknownNameError, match="headline"):
        make_workload("headlin")
    with pytest.raises(UnknownNameError, match="; jobs that arrive by a Poisson process come with per_hour"):
        make_workload("poisson")
    with pytest.raises(UnknownNameError, match="no option 'x'"):
        make_workload("headline", x=1)
    with pytest.raises(TraceError, match="jobs is 0"):
        make_workload("headline", jobs=0)
    with pytest.raises(TraceError, match="per_hour is 0"):
        make_workload("headline", per_hour=0.0)


def test_a_throughput_without_workers_is_refused() -> None:
    with pytest.raises(ThroughputError, match="'m' has 0 workers; expected numbers from 1 up"):
        ThroughputTable.build([("m", 0, "f", 1.0, 1.0)])
