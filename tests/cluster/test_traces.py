"""Readers: every row is used or rejected with its line and reason; times are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hadoppler.envs.cluster import ThroughputTable, Workload, read_pai_machines, read_workload
from hadoppler.envs.cluster.throughput import DATA
from hadoppler.envs.errors import HadopplerError, ThroughputError, TraceError, UnknownNameError

SAMPLES = DATA / "samples"
CASES = Path(__file__).parent / "cases"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"


def seconds(workload: Workload) -> list[float]:
    """Recorded durations, back from the steps."""
    table = workload.throughputs
    return [job.steps / table.reference_rate(job.kind, job.workers) for job in workload.jobs]


@pytest.mark.parametrize(
    ("name", "used", "jobs", "rejected"),
    [
        ("gavel.trace", 3, 3, []),
        ("gavel_7_columns.trace", 2, 2, []),
        ("philly_cluster_job_log.json", 2, 2, [3, 4]),
        ("philly.csv", 2, 2, [4]),
        ("helios_cluster_log.csv", 2, 2, [3]),
        ("pai_task_table.csv", 3, 2, [4]),
        ("sacct.txt", 2, 2, [3, 5]),
        ("own.csv", 2, 2, []),
    ],
)
def test_samples_work_out_of_the_box(name: str, used: int, jobs: int, rejected: list[int]) -> None:
    workload = read_workload(SAMPLES / name)
    assert (workload.rows_used, len(workload)) == (used, jobs)
    assert [row.line for row in workload.rejected] == rejected
    assert workload.rows_read == workload.rows_used + len(workload.rejected)
    assert all(row.reason for row in workload.rejected)
    assert workload.arrival[0] == 0
    assert str(workload.rows_read) in workload.summary()


def test_gavel_columns() -> None:
    first, _, last = read_workload(SAMPLES / "gavel.trace").jobs
    assert (first.kind, first.workers, first.steps, first.slo) == ("ResNet-18 (batch size 128)", 4, 90000.0, None)
    assert (last.weight, last.slo, last.arrival, last.line) == (5.0, 2.0, 1200.0, 3)
    older = read_workload(SAMPLES / "gavel_7_columns.trace").jobs[1]
    assert (older.workers, older.steps, older.arrival) == (8, 50000.0, 300.0)


def test_philly_counts_hours_over_the_clock_change() -> None:
    workload = read_workload(SAMPLES / "philly_cluster_job_log.json")
    assert seconds(workload) == pytest.approx([3600.0, 3 * 3600.0])
    assert workload.workers.tolist() == [2, 1]
    utc = read_workload(SAMPLES / "philly_cluster_job_log.json", timezone="UTC")
    assert seconds(utc) == pytest.approx([3600.0, 2 * 3600.0])
    assert any("America/Los_Angeles" in note for note in workload.notes)


def test_an_hour_that_comes_twice_never_gives_a_negative_duration(tmp_path: Path) -> None:
    detail = [{"ip": "m", "gpus": ["gpu0"]}]
    attempt = {"start_time": "2017-11-05 01:50:00", "end_time": "2017-11-05 01:10:00", "detail": detail}
    job = {"jobid": "a", "submitted_time": "2017-11-05 01:40:00", "attempts": [attempt]}
    path = tmp_path / "log.json"
    path.write_text(json.dumps([job]))
    assert seconds(read_workload(path)) == pytest.approx([1200.0])


ATTEMPT = {
    "start_time": "2017-10-05 01:50:00",
    "end_time": "2017-10-05 02:10:00",
    "detail": [{"ip": "m", "gpus": ["gpu0"]}],
}
JOB = {"jobid": "a", "submitted_time": "2017-10-05 01:40:00", "attempts": [ATTEMPT]}


def philly_rejects(path: Path, **changed: object) -> str:
    """Why a Philly job is rejected beside a good one."""
    path.write_text(json.dumps([JOB, {**JOB, "jobid": "b", **changed}]))
    workload = read_workload(path)
    assert seconds(workload) == pytest.approx([1200.0])
    ((line, reason),) = [(row.line, row.reason) for row in workload.rejected]
    assert line == 2
    return reason


@pytest.mark.parametrize("nothing", [None, "None", "", "NaT", "null", 0])
def test_times_that_are_null_reject_the_job_by_name(tmp_path: Path, nothing: object) -> None:
    assert "submitted_time" in philly_rejects(tmp_path / "log.json", submitted_time=nothing)
    for missing in ("start_time", "end_time"):
        attempts = [{**ATTEMPT, missing: nothing}]
        assert "attempt 1 has no start or no end" in philly_rejects(tmp_path / "log.json", attempts=attempts)


@pytest.mark.parametrize("attempts", [[None], "x", 3, [3], None, [], {}, [ATTEMPT, None], [{**ATTEMPT, "detail": 3}]])
def test_attempts_that_are_none_reject_the_job_by_name(tmp_path: Path, attempts: object) -> None:
    assert "attempt" in philly_rejects(tmp_path / "log.json", attempts=attempts)


@pytest.mark.parametrize("detail", [None, [], [None], [{"ip": "m", "gpus": None}], [{"ip": "m"}]])
def test_attempts_without_gpus_reject_the_job(tmp_path: Path, detail: object) -> None:
    assert "no GPU" in philly_rejects(tmp_path / "log.json", attempts=[{**ATTEMPT, "detail": detail}])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,u,v,1,1,1,COMPLETED,,,,100,0", "submit_time"),
        ("1,u,v,x,1,1,COMPLETED,2020-06-01 00:00:00,,,100,0", "gpu_num"),
        ("1,u,v,1,1,1,COMPLETED,2020-06-01 00:00:00,,,,0", "duration"),
        ("1,u,v,1,1,1,COMPLETED,2020-06-01 00:00:00,,,-5,0", "duration is -5"),
        ("1,u,v,0,1,1,COMPLETED,2020-06-01 00:00:00,,,5,0", "no GPU"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HELIOS + row + "\n2,u,v,1,1,1,COMPLETED,2020-06-01 00:00:00,,,100,0\n")
    workload = read_workload(path)
    (bad,) = workload.rejected
    assert bad.line == 2
    assert reason in bad.reason
    assert len(workload) == 1


def test_slurm_gpus_and_steps() -> None:
    workload = read_workload(SAMPLES / "sacct.txt")
    assert workload.workers.tolist() == [2, 1]
    assert seconds(workload) == pytest.approx([7200.0, 900.0])
    assert "step of job 501" in workload.rejected[0].reason


@pytest.mark.parametrize("gpu_type", ["", "v100", "2080ti", "3090", "a100-40gb", "1g.10gb"])
@pytest.mark.parametrize("count", [1, 4])
def test_slurm_counts_come_last_whatever_the_type_is_called(tmp_path: Path, gpu_type: str, count: int) -> None:
    between = f":{gpu_type}" if gpu_type else ""
    for column, text in (
        ("AllocTRES", f"cpu=8,gres/gpu{between}={count},mem=64G"),
        ("AllocTRES", f"cpu=8,gres/gpu:x={count + 5},gres/gpu{between}={count}" if not gpu_type else ""),
        ("ReqTRES", f"cpu=8,gres/gpu{between}:{count}"),
        ("AllocGRES", f"gpu{between}:{count}"),
        ("AllocGRES", f"gpu{between}:{count}(S:0-1,3)"),
        ("ReqGRES", f"gpu{between}:{count},lustre:1"),
    ):
        path = tmp_path / "sacct.txt"
        path.write_text(f"JobID|Submit|ElapsedRaw|{column}\n7|2024-03-10T09:00:00|60|{text}\n")
        if text:
            assert read_workload(path).workers.tolist() == [count], text


@pytest.mark.parametrize(("column", "elapsed"), [("ElapsedRaw", "soon"), ("ElapsedRaw", "nan"), ("start or end", "")])
def test_slurm_jobs_without_a_duration_are_rejected_by_name(tmp_path: Path, column: str, elapsed: str) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|Submit|Start|End|ElapsedRaw|AllocTRES\n"
        f"7|2024-03-10T09:00:00||2024-03-10T09:00:00|{elapsed}|gres/gpu=1\n"
        "8|2024-03-10T09:00:00|2024-03-10T09:00:00|2024-03-10T09:01:00||gres/gpu=1\n"
    )
    workload = read_workload(path)
    assert seconds(workload) == pytest.approx([60.0])
    assert [(row.line, column in row.reason) for row in workload.rejected] == [(2, True)]


def test_pai_shares_are_summed_and_rounded_up() -> None:
    workload = read_workload(SAMPLES / "pai_task_table.csv")
    assert workload.workers.tolist() == [2, 1]
    assert seconds(workload) == pytest.approx([3600.0, 900.0])


def test_own_csv_of_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,model,batch_size,steps\n0,1,LM,20,1000\n60,4,ResNet-50,64,500\n")
    assert [job.id for job in read_workload(path).jobs] == ["job2", "job3"]
    path.write_text("arrival,workers,duration\n2024-01-01 10:00:00,2,600\n2024-01-01 11:00:00,1,60\n5,0,7\n")
    workload = read_workload(path)
    assert workload.arrival.tolist() == [0.0, 3600.0]
    assert seconds(workload) == pytest.approx([600.0, 60.0])
    assert [row.line for row in workload.rejected] == [4]


def test_own_csv_with_comments_names_the_right_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "# my jobs\n\narrival,workers,model,steps,duration,weight\n0,1,A3C,10,,x\n# more\n0,1,A3C,,60,2\n"
        "0,1,,10,,\n0,1,Nobody,,5,\n0,1,A3C,,,\n-5,1,A3C,1,,\n"
    )
    workload = read_workload(path)
    assert [(row.line, row.reason.split(";")[0]) for row in workload.rejected] == [
        (4, "its weight is 'x'"),
        (7, "it has steps but no model"),
        (8, "the throughput table has no 'Nobody'"),
        (9, "it has neither steps nor a duration in seconds"),
        (10, "arrival is -5.0"),
    ]
    (job,) = workload.jobs
    assert (job.weight, job.line, seconds(workload)) == (2.0, 6, [pytest.approx(60.0)])


@pytest.mark.parametrize("slo", ["0", "-2", "nan", "inf"])
def test_a_wanted_completion_time_is_a_multiple_above_0(tmp_path: Path, slo: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival,workers,duration,slo\n0,1,60,1.5\n0,1,60,\n0,1,60,{slo}\n")
    workload = read_workload(path)
    assert [job.slo for job in workload.jobs] == [1.5, None]
    ((line, reason),) = [(row.line, row.reason) for row in workload.rejected]
    assert (line, reason) == (4, f"slo is {slo}; expected a multiple of its duration above 0")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("LM,abc,600,", "its batch_size is 'abc'; expected a whole number from 1 up"),
        ("LM,0,600,", "its batch_size is '0'; expected a whole number from 1 up"),
        ("LM,-5,,9", "its batch_size is '-5'; expected a whole number from 1 up"),
        ("LM,2.5,,9", "its batch_size is '2.5'; expected a whole number from 1 up"),
        ("LM (batch size 20),5,600,", "its batch_size is '5' beside the model 'LM (batch size 20)'; write it once"),
    ],
)
def test_batch_sizes_that_are_none_are_rejected(tmp_path: Path, cells: str, reason: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival,workers,model,batch_size,duration,steps\n0,1,LM,20,60,\n0,1,{cells}\n")
    assert [(row.line, row.reason) for row in read_workload(path).rejected] == [(3, reason)]


@pytest.mark.parametrize("name", ["philly.csv", "helios_cluster_log.csv", "sacct.txt", "own.csv"])
def test_rows_with_a_cell_too_many_are_rejected(tmp_path: Path, name: str) -> None:
    text, cells = (SAMPLES / name).read_text(), TABLES[name]
    for line in range(2, len(text.splitlines()) + 1):
        lines = text.splitlines()
        lines[line - 1] += f"{cells}7{cells}"
        (tmp_path / name).write_text("\n".join(lines))
        (bad,) = [row for row in read_workload(tmp_path / name).rejected if row.line == line]
        assert bad.reason == f"it has more cells than the header: '7{cells}' stands beyond"


def test_cells_that_are_not_read_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,model,batch_size,duration,steps\n0,1,LM,20,60,9\n0,1,,20,60,\n")
    workload = read_workload(path)
    assert workload.steps[0] == 9
    assert {"durations beside steps are not read", "batch sizes without a model are not read"} <= set(workload.notes)


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("0", "2024-05-01 13:30:00", "its arrival is a clock time, that of line 3 seconds"),
        ("2024-05-01T13:30:00+02:00", "1e-3", "its arrival is seconds, that of line 3 a clock time"),
    ],
)
def test_arrivals_of_the_other_kind_are_rejected(tmp_path: Path, one: str, other: str, reason: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"arrival,workers,duration\n{other},0,60\n{one},1,60\n{other},1,60\n{one},1,60\n")
    workload = read_workload(path)
    assert workload.arrival.tolist() == [0.0, 0.0]
    assert [row.line for row in workload.rejected] == [2, 4]
    assert workload.rejected[1].reason == f"{reason}; write all in one way"


def test_durations_count_on_the_type_that_is_named(tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text(
        "model,batch_size,workers,gpu_type,steps_per_s\nNet,,1,t4,2\nNet,,1,a100,10\nBig,,1,t4,0\nBig,,1,a100,4\n"
    )
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,duration,model\n0,1,60,Net\n0,1,60,Big\n")
    first = read_workload(path, rates)
    assert first.steps.tolist() == [120.0, 240.0], "the first type that a job fits"
    assert any("durations count as on t4, the table's first type" in note for note in first.notes)
    fast = read_workload(path, rates, measured_on="a100")
    assert fast.steps.tolist() == [600.0, 240.0]
    assert "durations count as on a100 (workload.measured_on)" in fast.notes
    slow = read_workload(path, rates, measured_on="t4")
    assert [(row.line, row.reason) for row in slow.rejected] == [
        (3, "'Big' with 1 workers does not run on t4, on which durations were recorded (workload.measured_on)")
    ]
    with pytest.raises(TraceError, match="'h100', a GPU type that the throughput table lacks; it has t4, a100"):
        read_workload(path, rates, measured_on="h100")
    with pytest.raises(TraceError, match="did you mean a100"):
        read_workload(path, rates, measured_on="A100")


def test_a_given_model_stands_for_unknown_ones_with_a_duration(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,duration,steps,model\n0,1,60,,whisper\n0,1,60,,LM\n0,1,,9,whisper\n0,1,60,,A3C\n")
    bare = read_workload(path)
    assert [row.line for row in bare.rejected] == [2, 3, 4]
    timed, _, counted = [row.reason for row in bare.rejected]
    assert "workload.model" in timed
    assert "workload.throughputs" in timed
    assert "workload.model" not in counted, "steps of an unknown model are worth nothing known"
    workload = read_workload(path, model="LM (batch size 20)")
    assert [job.kind for job in workload.jobs] == ["LM (batch size 20)"] * 2 + ["A3C"]
    assert [row.line for row in workload.rejected] == [4]
    told = "LM (batch size 20) stands for the models of 2 rows that the table lacks (whisper, LM)"
    assert told in workload.notes


def test_a_window_and_denser_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = "".join(f"{arrival},1,60\n" for arrival in (1000, 1100, 1300, 1500, 1900))
    path.write_text(f"arrival,workers,duration\n{rows}0,0,60\n")
    whole = read_workload(path)
    part = read_workload(path, start_s=100, end_s=900)
    assert part.arrival.tolist() == [0, 200, 400], "from the start on, before the end"
    assert [job.kind for job in part.jobs] == [job.kind for job in whole.jobs[1:4]], "models do not depend on it"
    assert "window from 100 s to 900 s: 2 of 5 jobs left out" in part.notes
    assert [row.line for row in part.rejected] == [7]
    assert read_workload(path, load=2).arrival.tolist() == [500, 550, 650, 750, 950]
    assert read_workload(path, start_s=500, load=0.5).arrival.tolist() == [0, 800]
    for wrong in ({"start_s": -1}, {"start_s": 5, "end_s": 5}, {"load": 0}, {"load": "x"}, {"start_s": 901}):
        with pytest.raises(TraceError, match=r"start_s is|load is|no job arrives"):
            read_workload(path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("arrival;workers;duration", "write commas"),
        ("Arrival,Workers,Duration", "write Arrival, Workers, Duration in small letters"),
        ("arrival,Workers,duration", "'workers' is missing; found arrival, Workers, duration; write Workers in small"),
        ("arrival,workers,Duration", "neither steps nor a duration in seconds; write Duration in small letters"),
        ("when,who", "columns arrival, workers and duration, or arrival, workers, model, batch_size and steps."),
    ],
)
def test_headers_that_are_almost_right_are_explained(tmp_path: Path, header: str, words: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\n0,1,60\n")
    with pytest.raises(TraceError) as caught:
        read_workload(path)
    assert words in str(caught.value)


def test_columns_that_nobody_reads_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,duration,Weight,user\n0,1,60,5,ann\n0,1,60,1,bob\n")
    workload = read_workload(path)
    assert "columns that are not read: Weight, user" in workload.notes
    assert workload.weight.tolist() == [1.0, 1.0]
    assert not any("not read" in note for note in read_workload(SAMPLES / "own.csv").notes)


def test_the_forms_of_a_clock_time_are_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,duration\n01.05.2024 13:30,1,60\n0,two,60\n0,1,60\n")
    first, second = [row.reason for row in read_workload(path).rejected]
    assert "expected seconds, or a clock time such as 2024-05-01 13:30:00" in first
    assert second == "its workers is 'two'; expected a whole number of GPUs"


def test_models_are_drawn_from_the_seed_or_given() -> None:
    path = SAMPLES / "helios_cluster_log.csv"
    kinds = [[job.kind for job in read_workload(path, seed=seed).jobs] for seed in (0, 0, 1, 2, 3)]
    assert kinds[0] == kinds[1]
    assert any(other != kinds[0] for other in kinds[2:])
    assert {job.kind for job in read_workload(path, model="A3C").jobs} == {"A3C"}
    with pytest.raises(TraceError, match="'B3C'"):
        read_workload(path, model="B3C")


def test_unknown_models_are_rejected_not_dropped(tmp_path: Path) -> None:
    table = ThroughputTable.read(SAMPLES / "own_throughputs.csv")
    path = tmp_path / "mine.csv"
    path.write_text("arrival,workers,model,batch_size,steps\n0,1,MyNet,32,10\n0,1,Other,,10\n")
    workload = read_workload(path, throughputs=table)
    assert [(row.line, "Other" in row.reason) for row in workload.rejected] == [(3, True)]


def test_unusable_files_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    with pytest.raises(TraceError, match="cannot be read"):
        read_workload(path)
    path.write_text("hello\nworld\n")
    with pytest.raises(TraceError, match="no known format"):
        read_workload(path)
    with pytest.raises(UnknownNameError, match="choose one of"):
        read_workload(path, format="nonsense")
    path.write_text("arrival,workers,steps,model\nx,1,1,LM\n")
    with pytest.raises(TraceError, match="none of its 1 rows is a usable job; line 2: its arrival is 'x'"):
        read_workload(path)
    with pytest.raises(TraceError, match="no time zone"):
        read_workload(SAMPLES / "own.csv", timezone="Mars/Olympus")


def test_case_h01_bad_ends_are_rejected_by_name() -> None:
    workload = read_workload(CASES / "H01_pai_task_bad_end.csv")
    assert seconds(workload) == pytest.approx([300.0])
    assert [row.line for row in workload.rejected] == [3, 4, 5]
    assert ["end_time" in row.reason for row in workload.rejected] == [True] * 3


def test_case_h03_repeated_and_empty_ids_lose_no_job() -> None:
    workload = read_workload(CASES / "H03_helios_dup_ids.csv")
    assert workload.rows_read == 4 == len(workload) + len(workload.rejected)
    assert [job.id for job in workload.jobs] == ["7", "7@3", "@4", "8"]
    assert any("ids" in note for note in workload.notes)


def test_case_h04_percent_of_a_gpu() -> None:
    workload = read_workload(CASES / "H04_pai_task.csv")
    assert workload.workers.tolist() == [1]
    use = read_pai_machines(CASES / "H04_pai_machine_metric.csv", CASES / "H04_pai_machine_spec.csv")
    assert dict(use.used) == pytest.approx({"m1": 6.4, "m2": 0.4})
    assert [use.share("m1"), use.share("m2")] == pytest.approx([0.8, 0.2])


def test_real_traces_are_read_whole(reference: Path) -> None:
    counts = {path.name: len(read_workload(path)) for path in sorted((reference / "gavel" / "real").iterdir())}
    assert sorted(counts.values()) == [18, 96, 100, 986]


ANYTHING = ("nan", "inf", "-inf", "-1", "0", "", "text", "1e400", "1e300", "9999-12-31T23:59:59", "0001-01-01 00:00:00")
TABLES = {
    "gavel.trace": "\t",
    "gavel_7_columns.trace": "\t",
    "philly.csv": ",",
    "helios_cluster_log.csv": ",",
    "pai_task_table.csv": ",",
    "sacct.txt": "|",
    "own.csv": ",",
}


def spoilt_tables(text: str, delimiter: str, value: str) -> Iterator[str]:
    """A table with another value in each cell, one at a time, and with one cell more in each line."""
    lines = [line.split(delimiter) for line in text.splitlines()]
    for i, cells in enumerate(lines):
        for j in range(len(cells) + 1):
            changed = [*cells[:j], value, *cells[j + 1 :]]
            yield "".join(delimiter.join(changed if k == i else row) + "\n" for k, row in enumerate(lines))


def spoilt_values(whole: Any, value: Any) -> Iterator[Any]:
    """A nested value with another one in each place, one at a time."""
    yield value
    if isinstance(whole, list | dict):
        for key in range(len(whole)) if isinstance(whole, list) else list(whole):
            for changed in spoilt_values(whole[key], value):
                copy = whole.copy()
                copy[key] = changed
                yield copy


def outcome(read: Callable[[], Any], error: type[HadopplerError]) -> Any:
    """What was read, or the error that told why not."""
    try:
        return read()
    except error as told:
        return told


def check_readable(path: Path, format: str | None = None) -> None:
    """It becomes jobs with usable numbers and rejected rows, or is refused as a trace."""
    workload = outcome(lambda: read_workload(path, format=format), TraceError)
    if isinstance(workload, TraceError):
        assert str(path) in str(workload)
        return
    assert workload.rows_used + len(workload.rejected) == workload.rows_read
    assert all(row.reason for row in workload.rejected)
    assert np.isfinite([workload.arrival, workload.steps, workload.weight]).all()
    assert (workload.workers >= 1).all()


@pytest.mark.parametrize("value", ANYTHING)
@pytest.mark.parametrize("name", TABLES)
def test_whatever_stands_in_a_cell_no_reader_breaks(tmp_path: Path, name: str, value: str) -> None:
    path = tmp_path / name
    text = (SAMPLES / name).read_text()
    for spoilt in spoilt_tables(text, TABLES[name], value):
        path.write_text(spoilt)
        check_readable(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1500000000, 10**30, "", "text", None, [], {}, [1]])
def test_whatever_stands_in_a_job_log_its_reader_does_not_break(tmp_path: Path, value: object) -> None:
    path = tmp_path / "log.json"
    for spoilt in spoilt_values(json.loads((SAMPLES / "philly_cluster_job_log.json").read_text()), value):
        path.write_text(json.dumps(spoilt))
        check_readable(path, "philly")


@pytest.mark.parametrize("value", ANYTHING)
def test_whatever_stands_in_the_machines_tables_is_read_or_named(tmp_path: Path, value: str) -> None:
    for name in ("H04_pai_machine_metric.csv", "H04_pai_machine_spec.csv"):
        paths = {each: CASES / f"H04_pai_machine_{each}.csv" for each in ("metric", "spec")}
        for spoilt in spoilt_tables((CASES / name).read_text(), ",", value):
            paths[name[16:-4]] = tmp_path / name
            (tmp_path / name).write_text(spoilt)
            use = outcome(lambda: read_pai_machines(**paths), TraceError)  # noqa: B023
            if isinstance(use, TraceError):
                assert str(tmp_path / name) in str(use)
                continue
            assert all(0 <= used < np.inf for used in use.used.values())


@pytest.mark.parametrize("value", ANYTHING)
def test_whatever_stands_in_a_table_of_rates_is_read_or_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "rates.csv"
    for spoilt in spoilt_tables((SAMPLES / "own_throughputs.csv").read_text(), ",", value):
        path.write_text(spoilt)
        table = outcome(lambda: ThroughputTable.read(path), ThroughputError)
        if isinstance(table, ThroughputError):
            assert str(path) in str(table)
            continue
        assert all(np.isfinite(table.job_rates(kind, 3)).all() for kind in table.kinds)


def test_files_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"machine,cap_gpu\n\xff\xfe,8\n")
    for read in (read_workload, lambda path: read_pai_machines(path, path)):
        with pytest.raises(TraceError, match="cannot be read"):
            read(path)
    path.write_text(f"arrival,workers,duration\n0,1,{'9' * 200_000}\n")
    with pytest.raises(TraceError, match="line 2: cannot be read"):
        read_workload(path)


@pytest.mark.parametrize("header", ["arrival,workers,duration,duration", "arrival,arrival,workers,duration"])
def test_columns_that_stand_there_twice_are_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\n0,1,60,70\n")
    with pytest.raises(TraceError, match="stands there twice"):
        read_workload(path)
