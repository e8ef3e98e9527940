"""What an installation brings: pinned versions, declared dependencies, every file needed."""

import re
import shutil
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from helpers.processes import ROOT, run_program, run_python
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from test_architecture import imported, imports_and_calls

PACKAGES = ("pipeline", "rerankers", "indexes")
LARGEST_DISTRIBUTION = 60 * 10**6  # bytes

PYPROJECT: dict[str, Any] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)
PROJECT = PYPROJECT["project"]
LOCKS: dict[str, tuple[str, ...]] = {
    "rank": (),
    "rank-serve": ("serve",),
    "quickstart": ("search", "neural"),
    "serve": ("search", "serve", "neural"),
    "docker": ("search", "serve", "opensearch", "elasticsearch", "neural"),
    "test": ("dev",),
}
"""Name of a file in scripts/locks -> the extras whose packages it has."""
PARTLY_USED = {
    each["name"] for each in PYPROJECT["tool"]["uv"]["dependency-metadata"]
} - {"torch"}
"""Packages whose own requirements are not locked."""
installed_distributions = cache(metadata.packages_distributions)


def needed(*extras: str) -> list[Requirement]:
    """The project's requirements with these extras, and those extras that they name."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            own = Requirement(line)
            is_own = own.name == PROJECT["name"]
            lines += map(str, needed(*own.extras)) if is_own else [line]
    return [Requirement(line) for line in dict.fromkeys(lines)]


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def pins(lock: str) -> Mapping[str, Version]:
    """Canonical name -> version of the packages in a lock."""
    text = (ROOT / "scripts" / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
    found: dict[str, Version] = {}
    for entry in re.findall(r"^[^# ].*(?:\n +\S.*)*", text, re.MULTILINE):
        name, version = entry.split()[0].split("==")
        assert canonicalize_name(name) not in found, f"{name} is pinned twice"
        assert ("--hash=sha256:" in entry) == (name != "torch"), name
        found[canonicalize_name(name)] = Version(version)
    return found


def unpinned(
    requirements: list[Requirement], pinned: Mapping[str, Version]
) -> set[str]:
    """Names reached from these through the installed packages' own needs, but not pinned."""
    missing = set()
    waiting = [(r.name, extra) for r in requirements for extra in ("", *r.extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        if canonicalize_name(name) not in pinned:
            missing.add(name)
            continue
        if name in PARTLY_USED:
            continue
        for need in map(Requirement, metadata.requires(name) or []):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                new = {(need.name, wanted) for wanted in ("", *need.extras)} - seen
                seen |= new
                waiting += new
    return missing


@pytest.mark.parametrize("lock", LOCKS)
def test_the_locks_satisfy_the_requirements(lock: str) -> None:
    """Else run scripts/lock."""
    pinned = pins(lock)
    for requirement in needed(*LOCKS[lock]):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in scripts/locks/{lock}.txt"
        assert requirement.specifier.contains(version), (
            f"{requirement}: pinned to {version}"
        )
    assert not unpinned(needed(*LOCKS[lock]), pinned)
    assert pinned.items() <= pins("test").items(), "another version than in test.txt"
    if not lock.startswith("rank"):
        [build_tool] = [
            Requirement(line) for line in PYPROJECT["build-system"]["requires"]
        ]
        assert build_tool.specifier.contains(pinned[canonicalize_name(build_tool.name)])
        assert not pinned["torch"].local, "found a build, expected what any index has"


def test_the_main_job_brings_no_transformer_and_no_table_library() -> None:
    heavy = {
        "faiss-cpu",
        "flask",
        "openai",
        "onnxruntime",
        "pandas",
        "pyarrow",
        "scikit-learn",
    }
    assert not pins("quickstart").keys() & (heavy | {"matplotlib", "transformers"})
    assert not pins("rank-serve").keys() & (
        heavy | {"huggingface-hub", "pyserini", "torch"}
    )


def test_the_two_builds_of_faiss_never_meet() -> None:
    builds = {"faiss-cpu", "faiss-gpu"}
    assert names(needed("cpu")) & builds == {"faiss-cpu"}
    assert names(needed("gpu")) & builds == {"faiss-gpu"}
    assert (
        names(needed("all")) & builds == names(needed("dev")) & builds == {"faiss-cpu"}
    )
    assert not names(needed("search", "serve", "adapt", "plot")) & builds


def undeclared(folder: str, declared: set[str]) -> dict[str, str]:
    """Modules of other projects that a folder imports without naming their project."""
    # Tests import their helper modules, and what is below scripts/.
    ours = {*PACKAGES, *(path.stem for path in (ROOT / folder).rglob("*"))}
    ours |= {path.stem for path in (ROOT / "scripts").iterdir()}
    distributions = installed_distributions()
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in imports_and_calls(path):
            for module in {name.split(".")[0] for name in imported(path, node)}:
                known = {
                    canonicalize_name(name) for name in distributions.get(module, [])
                }
                if (
                    module not in ours | sys.stdlib_module_names
                    and not known & declared
                ):
                    found[module] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


@pytest.mark.parametrize("folder", [*PACKAGES, "scripts", "tests"])
def test_what_is_imported_is_declared(folder: str) -> None:
    extras = set(PROJECT["optional-dependencies"]) - (
        set() if folder == "tests" else {"dev"}
    )
    assert not undeclared(folder, names(needed(*extras)))


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive of this checkout, and the wheel that is built from the archive."""
    copy, made = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("made")
    for path in ROOT.iterdir():
        if path.name in {*PACKAGES, "scripts", "tests"}:
            shutil.copytree(
                path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif path.is_file():
            shutil.copy(path, copy)
    # The build tool of this environment: one of its own would have to be downloaded.
    run_python("-m", "build", "--no-isolation", "--outdir", made, copy, code=0)
    return next(made.glob("*.tar.gz")), next(made.glob("*.whl"))


@pytest.mark.slow
def test_every_file_ships(distributions: tuple[Path, Path]) -> None:
    there = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not path.name.startswith(".")
    }
    with zipfile.ZipFile(distributions[1]) as wheel:
        names = wheel.namelist()
    shipped = {name for name in names if ".dist-info/" not in name}
    assert {"LICENSE", "NOTICE"} <= {name.rpartition("/licenses/")[2] for name in names}
    assert {f"{package}/py.typed" for package in PACKAGES} <= there
    assert shipped == there, "see [tool.setuptools.package-data] in pyproject.toml"
    assert max(path.stat().st_size for path in distributions) <= LARGEST_DISTRIBUTION
    run_python("-m", "twine", "check", "--strict", *distributions, code=0)


@pytest.mark.slow
def test_the_wheel_searches_the_sample(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    """In an environment of its own, to which this one lends the dependencies."""
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = (
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    )
    run_python(*pip, distributions[1], code=0)
    here, there = (
        Path(sysconfig.get_path("purelib", vars={"base": base, "platbase": base}))
        for base in (sys.prefix, str(environment))
    )
    # A line of a .pth file adds a folder, but reads no .pth file there: nothing of this checkout.
    (there / "dependencies.pth").write_text(f"{here}\n")
    search = (
        "search",
        "--topics",
        "sample",
        "--reranker",
        "mp_hcnn",
        "--output",
        "run",
    )
    own = {"TWEETRERANK_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    done = run_program(
        environment / "bin" / "tweetrerank", *search, cwd=tmp_path, code=0, **own
    )
    assert f"{there}/rerankers/checkpoints/mp_hcnn" in done.stderr
    assert "mp_hcnn + ql" in done.stdout
    assert (tmp_path / "run").is_file()
