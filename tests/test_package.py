"""The package as a whole: who imports whom, what is shipped, and that the shipped thing works."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import hadoppler
from hadoppler.baselines.placement.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["setuptools"]["packages"]
ROOMS = ("envs", "baselines", "agents", "real_system", "conf", "scripts")
MAY_IMPORT = {
    "envs": {"envs"},
    "baselines": {"envs", "baselines"},
    "agents": {"envs", "baselines", "agents"},
    "real_system": {"envs", "real_system"},
    "conf": {"conf"},
    "scripts": {*ROOMS, ""},
}
"""Room -> rooms that its modules may import; the empty name is the root of the package."""


def package_files(pattern: str = "*", root: Path = ROOT) -> list[Path]:
    """Every file of the package, the root's own included."""
    found = [root / "__init__.py", root / "py.typed"] if pattern == "*" else [root / "__init__.py"]
    for room in ROOMS:
        found += [path for path in (root / room).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts]
    return sorted(found)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of every import in a file, lazy ones included; relative names are resolved."""
    here = ["hadoppler", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def test_the_list_of_packages_is_the_tree() -> None:
    tree = {
        ".".join(["hadoppler", *path.parent.relative_to(ROOT).parts])
        for path in package_files("*.py")
        if path.name == "__init__.py"
    }
    assert not tree - set(PACKAGES), f"add to packages in pyproject.toml: {sorted(tree - set(PACKAGES))}"
    assert not set(PACKAGES) - tree
    assert len(PACKAGES) == len(set(PACKAGES))
    for path in package_files("*.py"):
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has modules and no __init__.py"


def test_imports_run_one_way() -> None:
    wrong = []
    for path in package_files("*.py"):
        room = path.relative_to(ROOT).parts[0]
        if room not in ROOMS:
            continue  # the root's own __init__ hands out what the rooms offer
        for line, name in imports(path):
            first, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            target = target if target in ROOMS else ""
            if first == "hadoppler" and target not in MAY_IMPORT[room]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_room_is_imported_by_its_bare_name() -> None:
    wrong = []
    for path in [*package_files("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        for line, name in imports(path):
            if name.partition(".")[0] in ROOMS:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_rooms_import_relatively_and_scripts_absolutely() -> None:
    for path in package_files("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if path.relative_to(ROOT).parts[0] == "scripts":
                assert node.level == 0, f"{where}: scripts also run as files"
            else:
                assert (node.module or "").partition(".")[0] != "hadoppler" or node.level, f"{where}: import relatively"


def test_every_module_has_a_docstring() -> None:
    for path in package_files("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not tree.body or ast.get_docstring(tree), f"{path.relative_to(ROOT)} has no docstring"


def test_public_functions_and_classes_have_docstrings() -> None:
    missing = []
    for path in package_files("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if named and not ast.get_docstring(node):  # type: ignore[arg-type]
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not missing, "\n".join(missing)


def test_no_file_names_a_machines_folders() -> None:
    found = []
    for path in package_files():
        if path.suffix in (".py", ".yaml", ".yml", ".json", ".toml", ".md", ".txt", ".csv"):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(r"(?<![\w.])(/home/|/work/|/root/|/Users/|/tmp/|/mnt/)\w|[A-Z]:\\\\", line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_the_root_offers_what_it_says() -> None:
    for name in hadoppler.__all__:
        assert hasattr(hadoppler, name)
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", hadoppler.__version__)
    for target in hadoppler.PLACEMENTS.values():
        module, _, attribute = target.partition(":")
        path = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert attribute in names, target


HEAVY = {"torch", "torch_geometric", "stable_baselines3", "sb3_contrib", "ray", "wandb"}


def test_envs_and_baselines_import_without_torch() -> None:
    modules = [name for name in PACKAGES if name.startswith(("hadoppler.envs", "hadoppler.baselines"))]
    modules += [target.partition(":")[0] for target in METHODS.values()]
    code = f"import sys, {', '.join(modules)}; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_graphs_are_placed_where_torch_is_not_installed() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))\n"
        "import hadoppler, hadoppler.envs.placement as p\n"
        "problem = p.PlacementProblem(p.make_graph('chain', length=4), p.Topology.preset('4xP100'))\n"
        "print(hadoppler.place('round_robin', problem).assignment.tolist())\n"
        "try:\n"
        "    p.from_module(None, ())\n"
        "except hadoppler.envs.errors.MissingExtraError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    placed, missing = done.stdout.splitlines()
    assert placed == "[0, 1, 2, 3]"
    assert "torch" in missing


# --- what is shipped ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network from a copy of the tree, so that nothing is left in it."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed, so no wheel can be built without a network")
    folder = tmp_path_factory.mktemp("wheel")
    copied = folder / "tree"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "node_modules")
    shutil.copytree(ROOT, copied, ignore=ignored)
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    if find_spec("pip") is None:
        if find_spec("build") is None:
            pytest.skip("neither pip nor build is installed, so no wheel can be built")
        command = ["-m", "build", "--wheel", "--no-isolation"]
    place = ["--outdir"] if "build" in command else ["--wheel-dir"]
    done = subprocess.run(
        [sys.executable, *command, *place, str(folder), str(copied)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    inside = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    assert {name.partition("/")[0] for name in inside} == {"hadoppler"}
    rooms = {name.split("/")[1] for name in inside if name.count("/") > 1}
    assert rooms <= set(ROOMS), "no tests, benchmarks or docs"
    tree = wheel.parent / "tree"
    expected = {path.relative_to(tree).as_posix() for path in package_files(root=tree) if shipped(path)}
    found = {name.removeprefix("hadoppler/") for name in inside}
    assert not expected - found, f"add to packages or package-data in pyproject.toml: {sorted(expected - found)}"
    assert not found - expected
    assert {"py.typed", "conf/place.yaml", "conf/graph/chain.yaml"} <= found


def shipped(path: Path) -> bool:
    """Whether a file belongs to the package: not hidden, not a compiler's."""
    return not path.name.startswith(".") and path.suffix not in (".pyc", ".nbi", ".nbc")


def test_the_root_holds_no_stray_modules() -> None:
    assert [path.name for path in ROOT.glob("*.py")] == ["__init__.py"], "setuptools would ship any other"


def test_the_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    if find_spec("pip") is None:
        pytest.skip("pip is not installed")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *install, "--target", str(site), str(wheel)], check=True, timeout=120)
    # NUMBA_DISABLE_JIT: the kernels run as plain Python, for compiling them anew takes most of a minute
    environment = {**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=work, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "from hadoppler import place, PLACEMENTS; import hadoppler; print(hadoppler.__file__)").strip()
    assert Path(where) == site / "hadoppler" / "__init__.py"
    assert run(str(site / "bin" / "hadoppler"), "--version") == f"hadoppler {hadoppler.__version__}\n"
    printed = run(str(site / "bin" / "hadoppler"), "place", "graph=chain", "method=[heft,round_robin]")
    assert "chain: 16 operations" in printed
    assert len(list(work.glob("runs/place/*/gantt.png"))) == 1
    assert [path.name for path in work.iterdir()] == ["runs"], "nothing else is written"
