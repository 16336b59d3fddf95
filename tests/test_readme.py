"""Every block of the README and of the pages named below is run as it stands; trainings are cut short."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from hadoppler import place
from hadoppler.envs.placement import PlacementProblem, make_graph
from hadoppler.scripts.cli import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/cluster.md",
    "docs/doppler.md",
    "docs/execution.md",
    "docs/extend.md",
    "docs/placement.md",
    "docs/real_cluster.md",
    "docs/reproduce.md",
    "docs/sweeps.md",
    "docs/training_jobs.md",
)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS}
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", "\n".join(TEXTS.values()), flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
SHORT = {
    "imitation": ["stage.imitation.updates=2", "stage.imitation.batch=4"],
    "simulation": ["stage.simulation.updates=2", "stage.simulation.batch=4", "stage.simulation.search_calls=100"],
    "online": ["stage.online.updates=3", "stage.online.batch=2", "stage.online.search_calls=100"],
}
"""Settings that cut the stages of a training short."""
FILES = {found[1]: text for _, text in BLOCKS if (found := re.match(r"# (\w+\.(?:py|csv|yaml))\n", text))}
"""Name -> blocks that are files of the user's; the first line is a comment with the name."""
PROGRAMS = [text for language, text in BLOCKS if language == "python" and text not in FILES.values()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the files that the README asks for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that was hardly trained."""
    folder = tmp_path_factory.mktemp("policy")
    short = [*SHORT["imitation"], *SHORT["simulation"], "graph=fork_join", "pictures=false"]
    assert main(["train", *short, f"hydra.run.dir={folder}"]) == 0
    return folder / "policy.pt"


def shortened(words: list[str]) -> list[str]:
    """A command that trains, with few and small updates."""
    if words[0] == "evaluate":
        return [*words, *(["fine_tune.updates=2", "fine_tune.search_calls=100"] if "fine_tune" in str(words) else [])]
    if words[0] != "train":
        return words
    stages = next((word for word in words if word.startswith("stage=")), "stage=[imitation,simulation]")
    chosen = stages.partition("=")[2].strip("[]").replace("reinforce", "simulation").split(",")
    names = [name for name in chosen if name in SHORT]
    return [*words, "agent.samples=4", *(setting for name in names for setting in SHORT[name])]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, folder: Path, request: pytest.FixtureRequest) -> None:
    words = shlex.split(command)
    assert words[0] == "hadoppler"
    if "=policy.pt" in command:
        shutil.copy(request.getfixturevalue("policy"), folder)
    if "=placement.json" in command:
        problem = PlacementProblem.raw(make_graph("chainmm"))
        place("heft", problem).save(folder / "placement.json", problem)
    assert main(shortened(words[1:])) == 0
    if words[-1] in ("--help", "info"):
        return
    results = list(folder.glob("runs/**/results.json"))
    assert len(results) == (4 if "-m" in words else 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: str, folder: Path) -> None:
    threads = torch.get_num_threads()
    try:
        exec(compile(program, "document", "exec"), {"__name__": "readme"})
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_pictures_exist(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXTS[name]):
        assert "://" in target or (ROOT / name).parent.joinpath(target).is_file(), target
