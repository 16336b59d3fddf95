"""``hadoppler simulate``: what it prints and writes, how it refuses, sweeps, and its pictures."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import hydra
import pytest

from hadoppler.baselines.cluster.registry import SCHEDULERS
from hadoppler.envs.cluster import Cluster, ThroughputTable
from hadoppler.envs.cluster.traces import SAMPLES
from hadoppler.envs.errors import ThroughputError, UnknownNameError
from hadoppler.scripts import simulate as command

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    group: sorted(
        path.name.removesuffix(".yaml") for path in resources.files("hadoppler.conf").joinpath(group).iterdir()
    )
    for group in ("workload", "cluster", "scheduler")
}
KEYS = {
    "scheduler", "workload", "seed", "ttd_s", "mean_jct_s", "median_jct_s", "p99_jct_s", "queueing_s", "ftf", "gru",
    "cru", "restarts", "ttd_bound_s", "decision_s",
}  # fmt: skip
TINY = ["workload.jobs=12", "scheduler=[srtf,gavel]"]
QUICK = [*TINY, "pictures=false"]
OWN = "# mine\narrival,workers,duration,model,batch_size\n0,1,3600,ResNet-18,128\n0,1,1800,ResNet-18,128\n"
ONE_GPU = ["workload=trace", "workload.path=mine.csv", "cluster=parse", "cluster.text=v100:1"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder with a trace and a cluster, on a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.csv").write_text(OWN)
    (tmp_path / "mine.yaml").write_text("name: two\nnodes: [{gpu_type: v100, gpus: 2}, {gpus: {k80: 2}}]\n")


def read(path: Path) -> Any:
    """Strict JSON, as other programs read it."""
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path}: {name} is not JSON"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_folders() -> list[Path]:
    return sorted(path.parent for path in Path().glob("runs/simulate/**/results.json"))


def run(*arguments: str) -> tuple[dict[str, Any], Path]:
    """Run the command in this process; its results and its folder."""
    before = run_folders()
    assert command.main(arguments) == 0
    (new,) = [path for path in run_folders() if path not in before]
    return read(new / "results.json"), new


def steady(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the wall time that a scheduler took."""
    return [{key: value for key, value in row.items() if key != "decision_s"} for row in rows]


# --- figures ------------------------------------------------------------------------------------------


def test_two_jobs_on_one_gpu_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    results, folder = run(*ONE_GPU, "scheduler=[yarn_cs,srtf]")
    first, shortest = results["rows"]
    assert set(first) >= KEYS
    assert (first["scheduler"], first["workload"], first["cluster"], first["seed"]) == ("yarn_cs", "mine", "v100:1", 0)
    # in order of arrival: 10 s restart and 3,600 s, then 10 s and 1,800 s; the shortest first: the other way round
    for row, ends in ((first, (3610, 5420)), (shortest, (1810, 5420))):
        assert row["ttd_s"] == pytest.approx(5420)
        assert row["mean_jct_s"] == row["median_jct_s"] == pytest.approx(fmean(ends))
        assert row["queueing_s"] == pytest.approx(ends[0] / 2)
        assert row["max_waiting_s"] == row["max_queueing_s"] == pytest.approx(ends[0])
        assert (row["gru"], row["cru"], row["restarts"], row["finished"]) == (pytest.approx(1), pytest.approx(1), 2, 2)
        assert row["ttd_bound_s"] == pytest.approx(5400)
        assert (row["bound"], row["ratio_bound"]) == ("single_type", pytest.approx(5420 / 5400))
        assert row["gru_work"] == pytest.approx(5400 / 5420)
    one, two = results["summary"]
    assert (one["reference"], one["ratio_jct"], one["ratio_ttd"]) == ("yarn_cs", 1, 1)
    assert two["ratio_jct"] == pytest.approx(3615 / 4515)
    jobs = table(folder / "jobs.csv")
    assert [(job["scheduler"], job["seed"], job["status"]) for job in jobs[::2]] == [
        ("yarn_cs", "0", "finished"), ("srtf", "0", "finished")
    ]  # fmt: skip
    assert [float(job["finish"]) for job in jobs] == pytest.approx([3610, 5420, 5420, 1810])
    rounds = table(folder / "rounds.csv")
    assert {row["gpus"] for row in rounds} == {"n0:v100x1"}
    assert [row["job"] for row in rounds if row["kept"] == "False"] == ["job3", "job4", "job4", "job3"]
    text = capsys.readouterr().out
    assert "mine: 2 jobs on 1 nodes, 1 v100" in text
    assert re.search(r"│ srtf +│ 90.33 │ 1.000 │ +1.004 │ +60.25 │ 0.801 │", text)
    assert "Throughputs: Gavel (OSDI 2020), throughputs.csv." in text
    for name in ("jobs.csv", "rounds.csv", "completion_times.png", "use.png", "nodes_srtf.png"):
        assert f"  {folder.resolve() / name}\n" in text
        assert (folder / name).stat().st_size > 0
    assert not [path for path in folder.iterdir() if path.name.startswith(".") and path.name != ".hydra"]
    record = read(folder / "run.json")
    assert (record["seed"], record["config"]) == (0, results["config"])


def test_means_ratios_and_spread_over_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    results, folder = run(*QUICK, "seeds=[3,1]", "reference=srtf", "scheduler=[srtf,gavel,hadar]")
    rows = results["rows"]
    assert [(row["scheduler"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("srtf", "gavel", "hadar") for seed in (3, 1)
    ]
    assert [row["workload"] for row in rows[:2]] == ["headline-12-s3", "headline-12-s1"]
    assert rows[0]["ttd_bound_s"] != rows[1]["ttd_bound_s"]
    assert [line["bound"] for line in results["summary"]] == ["single_type", "single_type", "mixing"]
    for line, pair in zip(results["summary"], (rows[:2], rows[2:4], rows[4:]), strict=True):
        assert line["ttd_s"] == fmean(row["ttd_s"] for row in pair)
        assert line["mean_jct_s_deviation"] == stdev(row["mean_jct_s"] for row in pair)
        assert line["ratio_jct"] == fmean(row["mean_jct_s"] for row in pair) / fmean(r["mean_jct_s"] for r in rows[:2])
        bound = fmean(row["ttd_bound_s"] for row in pair)
        assert line["ratio_bound"] == fmean(row["ttd_s"] for row in pair) / bound > 1
    jobs = table(folder / "jobs.csv")
    for row in rows:
        mine = [job for job in jobs if (job["scheduler"], int(job["seed"])) == (row["scheduler"], row["seed"])]
        assert row["mean_jct_s"] == pytest.approx(fmean(float(job["jct"]) for job in mine))
        assert row["ttd_s"] == max(float(job["finish"]) for job in mine) - min(float(job["arrival"]) for job in mine)
    text = capsys.readouterr().out
    assert "means over 2 seeds" in text
    assert "±" in text
    assert "ref: srtf." in text


def test_the_same_seed_gives_the_same_bytes_in_any_number_of_processes() -> None:
    arguments = [*QUICK, "seeds=[0,1]", "scheduler=[random,gavel]", "failures.mean_between_s=20000"]
    (one, first), (two, second) = run(*arguments), run(*arguments, "processes=2")
    assert steady(one["rows"]) == steady(two["rows"])
    for name in ("jobs.csv", "rounds.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert sum(row["lost_steps"] for row in one["rows"]) > 0, "nodes failed"


def test_gavels_mechanism_adds_its_own_figures() -> None:
    results, folder = run("workload=gavel", "workload.jobs=10", "scheduler=[gavel,gavel_fifo]", "mechanism=gavel")
    for row in results["rows"]:
        assert set(row) >= KEYS | {"makespan_s", "rounds", "utilisation"}
        assert 0 < row["utilisation"] <= 1
        assert row["cru"] == "nan"
    assert table(folder / "rounds.csv") == []
    assert not (folder / "use.png").exists()


def test_a_row_of_ones_own_and_reasons() -> None:
    results, folder = run(
        *QUICK, "scheduler=[hadar,gavel]", "scheduler.hadar.price=none", "explain=true",
        "+scheduler.fair={name:gavel,objective:isolated}",
    )  # fmt: skip
    assert [row["scheduler"] for row in results["rows"]] == ["hadar", "gavel", "fair"]
    assert [line["reference"] for line in results["summary"]] == ["gavel"] * 3
    rounds = table(folder / "rounds.csv")
    assert {"price", "payoff"} <= set(rounds[0])
    assert all(row["payoff"] == "" for row in rounds if row["scheduler"] != "hadar")
    assert all(float(row["price"]) == 0 and float(row["payoff"]) > 0 for row in rounds if row["scheduler"] == "hadar")


def test_a_narrow_terminal_gets_several_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(*QUICK)
    text = capsys.readouterr().out
    assert text.count("┏") == 3
    assert "…" not in text


# --- what is left out ---------------------------------------------------------------------------------


def test_rejected_rows_and_jobs_that_are_left_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.csv").write_text(OWN + "0,0,60,ResNet-18,128\n0,4,60,ResNet-18,128\n5,1,60,NoSuchNet,\n")
    file = ["workload=trace", "workload.path=mine.csv", "cluster=file", "cluster.path=mine.yaml"]
    results, folder = run(*file, "scheduler=[srtf,gavel,hadar]", "max_rounds=7", "pictures=false")
    assert [(row["line"], row["reason"]) for row in results["rejected"]] == [
        (5, "it asks no GPU"),
        (
            7, "the throughput table has no 'NoSuchNet'; name one of its models in workload.model for such jobs, or "
            "give its rates in workload.throughputs",
        ),
    ]  # fmt: skip
    assert [row["line"] for row in table(folder / "rejected.csv")] == ["5", "7"]
    counts = {row["scheduler"]: (row["finished"], row["cannot_fit"], row["unfinished"]) for row in results["rows"]}
    assert counts["srtf"] == counts["gavel"] == (1, 1, 1)
    assert counts["hadar"][1] == 0, "a gang of 4 fits on two types"
    text = capsys.readouterr().out
    assert "Trace: 2 of 5 rows rejected, all in rejected.csv:\n  1: it asks no GPU (line 5)" in text
    assert "srtf, gavel: seed 0: 1 of 3 jobs cannot fit (jobs job6; asks 4, its largest fitting type has 2)" in text
    assert re.search(r"\nsrtf.*: seed 0: 1 of 3 jobs unfinished \(jobs job3; the simulation was stopped before", text)
    assert "│ srtf * " in text


def test_drawn_models_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    run("workload=trace", "workload.path=sample:philly", "scheduler=[srtf]", "pictures=false", "workload.timezone=UTC")
    text = capsys.readouterr().out
    assert "Trace: models: drawn by GPU count, seeded" in text
    assert "Trace: clock times are taken as UTC." in text


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_bundled_sample_is_simulated(sample: str) -> None:
    arguments = ["workload=trace", f"workload.path=sample:{sample}", "scheduler=[yarn_cs]", "pictures=false"]
    results, _ = run(*arguments, "rounds=false")
    assert results["rows"][0]["finished"] > 0


def test_throughputs_of_ones_own(tmp_path: Path) -> None:
    rows = "MyNet,32,1,a100,12.0,\nMyNet,32,1,t4,2.5,\n"
    (tmp_path / "rates.csv").write_text("model,batch_size,workers,gpu_type,steps_per_s,spread_steps_per_s\n" + rows)
    world = ["workload=physical", "workload.throughputs=rates.csv", "cluster=parse", "cluster.text=a100:1 t4:1"]
    results, folder = run(*world, "scheduler=[srtf]", "rounds=false", "pictures=false")
    assert {job["kind"] for job in table(folder / "jobs.csv")} == {"MyNet (batch size 32)"}
    assert results["rows"][0]["finished"] == 5


def test_relative_speeds_that_count_and_those_that_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workload=trace", "workload.path=mine.csv", "cluster=parse", "cluster.text=a100:1 v100:1"]
    words += ["cluster.relative_speed={a100: 2.5, v100: 9}", "scheduler=[yarn_cs]", "pictures=false"]
    results, folder = run(*words)
    told = [
        "rates as multiples of those on v100: a100 2.5",
        "relative_speed of v100 is not used: the table has measured rates",
    ]
    assert results["notes"][-2:] == told
    text = capsys.readouterr().out
    assert all(f"Cluster: {note}." in text for note in told)
    spans = sorted(float(job["finish"]) - 10 for job in table(folder / "jobs.csv"))
    assert spans == pytest.approx([1800 / 2.5, 3600]), "the first job on the v100, the second on the a100"


def test_wanted_completion_times_are_told_where_jobs_have_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text("arrival,workers,duration,slo\n0,1,3600,1.1\n0,1,1800,1.1\n0,1,60,\n")
    results, _ = run(*ONE_GPU, "scheduler=[yarn_cs]", "rounds=false", "pictures=false", "workload.model=A3C")
    assert results["rows"][0]["slo_met"] == results["summary"][0]["slo_met"] == 0.5, "the second waits for the first"
    text = capsys.readouterr().out
    assert "SLO met: part of the jobs" in text
    assert re.search(r"┃ +SLO ┃", text)
    bare, _ = run(*QUICK, "rounds=false")
    assert "slo_met" not in bare["rows"][0]
    assert not re.search(r"SLO|node\b|lost", capsys.readouterr().out.partition("Throughputs")[0])


@pytest.mark.parametrize(("utility", "first"), [("remaining", "job3"), ("weighted_remaining", "job2")])
def test_weights_count_where_the_utility_says_so(tmp_path: Path, utility: str, first: str) -> None:
    (tmp_path / "mine.csv").write_text("arrival,workers,duration,weight\n0,1,3600,10\n0,1,1800,1\n")
    words = ["scheduler=[hadar]", f"scheduler.hadar.utility={utility}", "pictures=false", "workload.model=A3C"]
    _, folder = run(*ONE_GPU, *words)
    assert table(folder / "rounds.csv")[0]["job"] == first


def test_failures_are_told_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*QUICK, "rounds=false", "failures.mean_between_s=20000", "failures.until_s=100000"]
    results, _ = run(*arguments)
    for row, line in zip(results["rows"], results["summary"], strict=True):
        assert row["failures"] == line["failures"] > 0
        assert line["lost_steps"] > 0
    text = capsys.readouterr().out
    assert re.search(r"┃ +node ┃ +lost ┃", text)
    assert f"│ {results['rows'][0]['lost_steps']:.0f} │" in re.sub(" +", " ", text)


def test_the_worst_finish_time_fairness_stands_beside_the_mean(capsys: pytest.CaptureFixture[str]) -> None:
    results, _ = run(*QUICK, "rounds=false")
    text = re.sub(" +", " ", capsys.readouterr().out)
    for row in results["rows"]:
        assert f"│ {row['ftf']:.3f} │ {row['max_ftf']:.3f} │" in text


def test_a_run_in_which_nothing_was_finished_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*QUICK, "max_rounds=1", "round_s=1"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no job was finished under any scheduler, so there are no figures; give more than max_rounds=1." in error
    assert read(run_folders()[0] / "results.json")["rows"][0]["finished"] == 0


def test_a_window_of_a_trace_and_its_load(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("arrival,workers,duration\n0,1,60\n100,1,60\n1000,1,60\n")
    words = [*ONE_GPU, "scheduler=[yarn_cs]", "pictures=false", "workload.start_s=50", "workload.load=2"]
    results, folder = run(*words)
    assert [float(job["arrival"]) for job in table(folder / "jobs.csv")] == [0, 450]
    assert results["rejected"] == []
    assert "window from 50 s to the end: 1 of 3 jobs left out" in results["notes"]
    assert "Trace: window from 50 s to the end: 1 of 3 jobs left out." in capsys.readouterr().out


BROKEN = """
from hadoppler.baselines.cluster.srtf import SRTF

class Broken(SRTF):
    def schedule(self, view):
        raise KeyError("a defect")

class Greedy(SRTF):
    def schedule(self, view):
        allocation = super().schedule(view)
        allocation.count[:] += 1
        return allocation
"""


def test_schedulers_that_fail_leave_the_others_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_schedulers.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("Broken", "Greedy"):
        monkeypatch.setitem(SCHEDULERS, name.lower(), f"broken_schedulers:{name}")
    assert command.main([*QUICK, "+scheduler.greedy={}", "reference=greedy"]) == 0
    (folder,) = run_folders()
    results = read(folder / "results.json")
    assert [row["scheduler"] for row in results["rows"]] == ["srtf", "gavel"]
    assert list(results["failed"]) == ["greedy, seed 0"]
    assert results["summary"][0]["ratio_jct"] == "nan"
    text = capsys.readouterr().out
    assert "ref: greedy, which has no result." in text
    assert "greedy, seed 0: no result. job '" in text
    assert command.main([*QUICK, "+scheduler.broken={}"]) == 2
    assert "the runs that failed: broken, seed 0; the others' results are complete." in capsys.readouterr().err
    (kept,) = Path().glob("runs/simulate/*/broken.0.traceback.txt")
    assert "KeyError: 'a defect'" in kept.read_text()
    assert command.main([*QUICK, "scheduler=[]", "+scheduler.greedy={}"]) == 2
    assert "no scheduler gave a result: job '" in capsys.readouterr().err


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scheduler=[gavle]"], ["no scheduler called 'gavle'", *GROUPS["scheduler"]]),
        (["+scheduler.hadra={}"], ["no scheduler is called 'hadra' (did you mean hadar?)"]),
        (["scheduler=[]"], ["no scheduler is chosen", *SCHEDULERS]),
        (["scheduler=[gavel]", "scheduler.gavel.objectiv=1"], ["did you mean scheduler.gavel.objective?"]),
        (["scheduler=[gavel]", "scheduler.gavel.objective=x"], ["gavel has no objective 'x'; choose one of max_min"]),
        (["scheduler=[gavel]", "+scheduler.gavel.x=1"], ["'gavel' has no option 'x'; its options are objective"]),
        (["scheduler=[gavel]", "scheduler.gavel=5"], ["scheduler.gavel is 5; expected its options"]),
        (["scheduler=[hadar]", "scheduler.hadar.beam=0"], ["beam is 0"]),
        (["scheduler=[hadar]", "scheduler.hadar.beam=x"], ["scheduler.hadar cannot take", "'beam': 'x'"]),
        (["scheduler=[replay]"], ["scheduler.replay.path is missing"]),
        (["scheduler=[replay]", "scheduler.replay.path=nix__fifo_perf.json.gz"], ["nix__", "cannot be read"]),
        (["workload=hedline"], ["no workload called 'hedline'", *GROUPS["workload"]]),
        (["workload=jobs.csv"], ["a file is given as workload=trace workload.path=jobs.csv"]),
        (["workload.jobs=0"], ["jobs is 0; expected a whole number from 1 up"]),
        (["workload.jbos=3"], ["no setting 'workload.jbos'; did you mean workload.jobs?"]),
        (["workload=poisson", "workload.per_hour=0"], ["per_hour is 0"]),
        (["workload=trace"], ["workload.path is missing; give it as workload.path=VALUE"]),
        (["workload=trace", "workload.path=nix.csv"], ["nix.csv: cannot be read", "give the path of a trace"]),
        (["workload=trace", "workload.path=sample:filly"], ["no sample trace is called 'filly' (did you mean"]),
        (["workload=trace", "workload.path=empty.csv"], ["empty.csv: its first line '' belongs to no known format"]),
        (["workload=trace", "workload.path=header.csv"], ["header.csv: none of its 0 rows is a usable job"]),
        (["workload=trace", "workload.path=binary.csv"], ["binary.csv: cannot be read"]),
        (["workload=trace", "workload.path=mine.csv", "workload.format=x"], ["no trace format is called 'x'"]),
        (["workload=trace", "workload.path=mine.csv", "workload.timezone=x"], ["no time zone is called 'x'"]),
        (["workload=trace", "workload.path=mine.csv", "workload.throughputs=nix.csv"], ["nix.csv: cannot be read"]),
        (["cluster=hedline"], ["no cluster called 'hedline'", *GROUPS["cluster"]]),
        (["cluster=mine.yaml"], ["a file is given as cluster=file cluster.path=mine.yaml"]),
        (["cluster=file", "cluster.path=nix.yaml"], ["nix.yaml: cannot be read"]),
        (["cluster=parse", "cluster.text=v100-4"], ["cannot read 'v100-4'; expected TYPE:GPUSxNODES"]),
        (
            ["cluster=parse", "cluster.text=h100:4"],
            ["has no GPU type 'h100', only v100, p100, k80", "'cluster.relative_speed={h100: 1.5}'"],
        ),
        (["cluster=parse", "cluster.text=V100:4"], ["has no GPU type 'V100'", "did you mean v100?"]),
        (["cluster=parse", "cluster.text=a1:4", "cluster.relative_speed={a1: x}"], ["expected a number for each GPU"]),
        (["cluster=parse", "cluster.text=a1:4", "cluster.relative_speed={b: 2}"], ["relative_speed of 'b' is 2.0"]),
        (["workload=trace", "workload.path=mine.csv", "workload.measured_on=t4"], ["measured_on is 't4'", "v100"]),
        (["workload=trace", "workload.path=mine.csv", "workload.load=0"], ["load is 0; expected a number above 0"]),
        (["seeds=-1"], ["seeds is -1; expected whole numbers from 0 up, such as seeds=[0,1,2]"]),
        (["seeds=[0,x]"], ["seeds is [0, 'x']"]),
        (["seeds=[]"], ["seeds is []"]),
        (["seeds=[0,1,0]"], ["seeds is [0, 1, 0], with 0 more than once"]),
        (["reference=tiresias"], ["reference is 'tiresias'; expected one of the schedulers srtf, gavel"]),
        (["round_s=0"], ["round_s is 0"]),
        (["round_s=abc"], ["round_s: Value 'abc'"]),
        (["mixed_rate=max"], ["mixed_rate is 'max'; expected proportional or min"]),
        (["mechanism=x"], ["mechanism is 'x'; expected gavel or null"]),
        (["mechanism=gavel"], ["scheduler.srtf is neither"]),
        (["failures.mean_between_s=-1"], ["failures.mean_between_s is -1.0; expected seconds above 0"]),
        (["failures.mean_between_s=1", "failures.repair_s=1"], ["failures.mean_between_s=1 means some"]),
        (["failures.mean=1"], ["no setting 'failures.mean'"]),
        (["processes=0"], ["processes is 0"]),
        (["max_rounds=0"], ["max_rounds is 0"]),
        (["rounds_s=3"], ["no setting 'rounds_s'; did you mean round"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else None,
)  # fmt: skip
def test_mistakes_are_one_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("arrival,workers,duration\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00arrival")
    assert command.main(["scheduler=[srtf,gavel]", "pictures=false", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("hadoppler simulate: ")
    assert lines[0][-1] in ".?"
    for word in words:
        assert word in lines[0]
    assert run_folders() == [], "no results are written"


# --- configuration and sweeps -------------------------------------------------------------------------


def compose(*overrides: str) -> Any:
    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        return hydra.compose("simulate", list(overrides))


@pytest.mark.parametrize("name", [name for name in GROUPS["workload"] if name not in ("tasks", "jobs_file")])
def test_every_workload_of_the_configuration_is_made(name: str) -> None:
    overrides = ["workload.path=sample:helios"] if name == "trace" else ["workload.jobs=7"]
    workload, _, failures = command.build_world(compose(f"workload={name}", *overrides), seed=2)
    assert len(workload) == (2 if name == "trace" else 7)
    assert failures == []
    if name == "poisson":
        assert workload.arrival[-1] > 0


def test_workloads_of_real_jobs_have_rates_in_a_run_only() -> None:
    """``workload=tasks`` is for ``hadoppler run``: the simulator says what is missing."""
    with pytest.raises(ThroughputError, match="no GPU type"):
        command.build_world(compose("workload=tasks"), seed=0)


@pytest.mark.parametrize("name", GROUPS["cluster"])
def test_every_cluster_of_the_configuration_is_made(name: str) -> None:
    own = {"parse": "cluster.text=v100:4x2 k80:8", "file": "cluster.path=mine.yaml"}
    overrides = [own[name]] if name in own else []
    _, cluster, _ = command.build_world(compose(f"cluster={name}", "workload.jobs=3", *overrides), seed=0)
    if name in own:
        assert cluster.gpus == (16 if name == "parse" else 4)
    else:
        assert cluster.to_dict() == Cluster.built_in(name).to_dict()


@pytest.mark.parametrize("name", GROUPS["scheduler"])
def test_every_scheduler_of_the_configuration_is_made(name: str, tmp_path: Path) -> None:
    overrides = []
    if name == "replay":
        (tmp_path / "t__fifo_perf.json").write_text('{"allocations": []}')
        overrides = ["scheduler.replay.path=t__fifo_perf.json"]
    config = compose(f"scheduler=[{name}]", *overrides)
    (row,) = config.scheduler
    assert row == name
    registered = config.scheduler[row].get("name", row)
    if registered not in SCHEDULERS:
        pytest.skip(f"there is no scheduler {registered!r} yet")
    try:
        (choice,) = command.chosen_schedulers(config)
    except UnknownNameError:
        pytest.skip(f"there is no {row} yet")
    assert (choice.row, choice.name) == (row, registered)


def test_forks_are_consolidated_by_the_rule_of_the_world() -> None:
    assert compose("scheduler=[hadare]", "consolidation_s=3.5").scheduler.hadare.consolidation_s == 3.5


def test_failures_follow_from_the_seed() -> None:
    config = compose("workload.jobs=5", "failures.mean_between_s=50000", "failures.repair_s=100")
    events = [command.build_world(config, seed)[2] for seed in (0, 0, 1)]
    assert events[0] == events[1] != events[2]
    restored = {event.time for event in events[0] if event.action == "restore"}
    assert restored == {event.time + 100 for event in events[0] if event.action == "fail"}


def test_a_sweep_gives_a_folder_per_member() -> None:
    arguments = ["-m", "workload=poisson", "workload.jobs=5,6", "workload.per_hour=1,4", *QUICK[1:], "rounds=false"]
    assert command.main(arguments) == 0
    folders = run_folders()
    assert [folder.name for folder in folders] == ["0", "1", "2", "3"]
    found = [read(folder / "results.json") for folder in folders]
    assert [result["rows"][0]["finished"] for result in found] == [5, 5, 6, 6]
    assert [result["config"]["workload"]["per_hour"] for result in found] == [1, 4, 1, 4]
    assert not [path for folder in folders for path in folder.glob("*.png")]
    assert not (folders[0] / "rounds.csv").exists()


def test_help_is_readable_and_its_examples_compose(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    text = capsys.readouterr().out
    for group, choices in GROUPS.items():
        assert f"{group}: {', '.join(choices)}\n" in text
    assert "topology" not in text
    for words in ("mean_between_s is per node", "after failures.until_s", "null for the first of Gavel's"):
        assert words in text
    examples = [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("  hadoppler simulate ")]
    assert len(examples) >= 4
    for words in examples:
        assert compose(*(re.sub(r"=([\d\w]+),[\d,]+$", r"=\1", word) for word in words if word != "-m")).scheduler


def test_the_formats_of_the_documentation_are_read() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text()
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))  # the last of each kind
    Path("documented.yaml").write_text(blocks["yaml"])
    assert Cluster.from_yaml("documented.yaml").gpus_of_type.tolist() == [10, 6]
    Path("documented.json").write_text(blocks["json"])
    together, apart = ThroughputTable.read("documented.json").job_rates("ResNet-18 (batch size 128)", 2)
    assert (together.tolist(), apart.tolist()) == ([51.0], [44.0])
    for name in (*GROUPS["scheduler"], *SAMPLES):
        assert name.startswith("gavel_") or f"`{name}`" in text


def test_gpu_seconds_of_the_jobs_make_the_utilisation() -> None:
    results, folder = run(*QUICK, "scheduler=[hadar]", "early_refill=true")
    jobs = table(folder / "jobs.csv")
    total = sum(float(job["gpu_s"]) for job in jobs)
    assert total / (60 * results["rows"][0]["ttd_s"]) == pytest.approx(results["rows"][0]["gru"])
