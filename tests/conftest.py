"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder of reference data, or a skip."""
    folder = Path(os.environ.get("HADOPPLER_REFERENCE", ROOT.parent / "shared" / "reference"))
    if not folder.is_dir():
        pytest.skip(f"reference data is not at {folder}; set HADOPPLER_REFERENCE")
    return folder


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run: an empty folder, on a wide terminal; what they set in the environment is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    return tmp_path


@pytest.fixture
def others_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run as plain Python in other processes, for compiling takes a minute.

    Only for tests that leave all computing to those: compiling in this process would break. It has read its settings
    once numba is imported.
    """
    import numba  # noqa: F401

    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")


@pytest.fixture
def no_account(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``own_folder`` of somebody without any key, mode or settings of wandb."""
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)
    home = own_folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(own_folder / "netrc"))
    return own_folder


@pytest.fixture(scope="module")
def wandb_service() -> Iterator[None]:
    """The process that wandb starts ends with the tests of a module."""
    yield
    import wandb

    wandb.teardown()
