"""An installation: pinned versions, declared dependencies, every needed file."""

import re
import shutil
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.processes import ROOT, run_program, run_python
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from test_architecture import PACKAGES, imported_names

LARGEST_WHEEL = 17 * 2**20  # bytes
CHECKOUT_ONLY = {"held_out.run.gz"}
"""Files of the packages that a wheel lacks: scores of training topics, for `tune`."""

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
LOCKS: dict[str, tuple[str, ...]] = {
    "rank": (),
    "rank-serve": ("serve",),
    "quickstart": ("search", "neural"),
    "serve": ("search", "serve", "neural"),
    "docker": ("search", "serve", "opensearch", "elasticsearch", "neural"),
    "test": ("dev",),
}
"""File in scripts/locks -> the extras whose packages it has."""

PARTLY_USED = {
    package["name"] for package in PYPROJECT["tool"]["uv"]["dependency-metadata"]
} - {"torch"}
"""Packages whose own requirements are not locked."""

installed_distributions = cache(metadata.packages_distributions)


def needed(*extras: str) -> list[Requirement]:
    """The project's requirements with these extras, and with the extras they name."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(line)
            if requirement.name == PROJECT["name"]:
                lines += [str(inner) for inner in needed(*requirement.extras)]
            else:
                lines.append(line)
    return [Requirement(line) for line in dict.fromkeys(lines)]


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def pins(lock: str) -> Mapping[str, Version]:
    """Canonical name -> version of the packages in a lock."""
    text = (ROOT / "scripts" / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
    versions: dict[str, Version] = {}
    for entry in re.findall(r"^[^# ].*(?:\n +\S.*)*", text, re.MULTILINE):
        name, version = entry.split()[0].split("==")
        assert canonicalize_name(name) not in versions, f"{name} is pinned twice"
        assert ("--hash=sha256:" in entry) == (name != "torch"), name
        versions[canonicalize_name(name)] = Version(version)
    return versions


def requirements_of(distribution: str, extra: str) -> Iterator[Requirement]:
    """Requirements of an installed distribution with an extra ("" for none)."""
    for line in metadata.requires(distribution) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": extra}):
            yield requirement


def unpinned(
    requirements: list[Requirement], pinned: Mapping[str, Version]
) -> set[str]:
    """Packages that these requirements reach through installed ones, without a pin."""

    def with_extras(requirement: Requirement) -> set[tuple[str, str]]:
        return {(requirement.name, extra) for extra in ("", *requirement.extras)}

    missing = set()
    waiting = set[tuple[str, str]]().union(*map(with_extras, requirements))
    visited = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        if canonicalize_name(name) not in pinned:
            missing.add(name)
        elif name not in PARTLY_USED:
            for requirement in requirements_of(name, extra):
                new = with_extras(requirement) - visited
                visited |= new
                waiting |= new
    return missing


@pytest.mark.parametrize("lock", LOCKS)
def test_the_locks_satisfy_the_requirements(lock: str) -> None:
    """If this fails, run scripts/lock."""
    pinned = pins(lock)
    requirements = needed(*LOCKS[lock])
    assert names(requirements) <= pinned.keys()
    outdated = [
        str(requirement)
        for requirement in requirements
        if pinned[canonicalize_name(requirement.name)] not in requirement.specifier
    ]
    assert outdated == []
    assert not unpinned(requirements, pinned)
    assert pinned.items() <= pins("test").items(), "another version than in test.txt"


@pytest.mark.parametrize("lock", ["quickstart", "serve", "docker", "test"])
def test_pytorch_is_pinned_as_any_index_has_it(lock: str) -> None:
    assert not pins(lock)["torch"].local


def test_the_build_tool_is_pinned() -> None:
    [build_tool] = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert pins("build")[canonicalize_name(build_tool.name)] in build_tool.specifier


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
    large = heavy | {"huggingface-hub", "pyserini", "torch"}
    assert not pins("rank-serve").keys() & large


@pytest.mark.parametrize(
    ("extras", "builds"),
    [
        (("cpu",), {"faiss-cpu"}),
        (("gpu",), {"faiss-gpu"}),
        (("all",), {"faiss-cpu"}),
        (("dev",), {"faiss-cpu"}),
        (("search", "serve", "adapt", "plot"), set()),
    ],
)
def test_the_two_builds_of_faiss_never_meet(
    extras: tuple[str, ...], builds: set[str]
) -> None:
    assert names(needed(*extras)) & {"faiss-cpu", "faiss-gpu"} == builds


def undeclared(folder: str, declared: set[str]) -> dict[str, str]:
    """Modules of other projects that a folder imports without naming their project."""
    # Tests import their helper modules, and modules below scripts/.
    ours = {"tweetrerank"} | {path.stem for path in (ROOT / folder).rglob("*")}
    ours |= {path.stem for path in (ROOT / "scripts").iterdir()}
    distributions = installed_distributions()
    missing = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, name in imported_names(path):
            module = name.split(".")[0]
            if module in ours | sys.stdlib_module_names:
                continue
            projects = map(canonicalize_name, distributions.get(module, []))
            if declared.isdisjoint(projects):
                missing[module] = f"{path.relative_to(ROOT)}:{line}"
    return missing


@pytest.mark.parametrize("folder", [*PACKAGES, "tweetrerank", "scripts", "tests"])
def test_imports_are_declared(folder: str) -> None:
    extras = set(PROJECT["optional-dependencies"])
    if folder != "tests":
        extras.remove("dev")
    assert not undeclared(folder, names(needed(*extras)))


class Distributions(NamedTuple):
    """What a release would be, and the folder that it was built in."""

    source: Path  # Archive of the sources
    wheel: Path  # Built from a checkout
    left_behind: set[str]  # Names that building has added to the checkout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    checkout = tmp_path_factory.mktemp("checkout")
    output = tmp_path_factory.mktemp("output")
    for path in ROOT.iterdir():
        if path.name in {*PACKAGES, "tweetrerank", "scripts", "tests"}:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, checkout / path.name, ignore=ignored)
        elif path.is_file():
            shutil.copy(path, checkout)
    before = {path.name for path in checkout.iterdir()}
    # The build tool of this environment: one of its own would have to be downloaded.
    build = ("-m", "build", "--no-isolation", "--outdir", output)
    run_python(*build, "--sdist", "--wheel", checkout, code=0)
    return Distributions(
        source=next(output.glob("*.tar.gz")),
        wheel=next(output.glob("*.whl")),
        left_behind={path.name for path in checkout.iterdir()} - before,
    )


def shipped_files() -> Iterator[str]:
    """Names in the wheel of the packages' files."""
    for package in (*PACKAGES, "tweetrerank"):
        for path in (ROOT / package).rglob("*"):
            is_hidden = path.name.startswith(".") or path.suffix == ".pyc"
            if path.is_dir() or is_hidden or path.name in CHECKOUT_ONLY:
                continue
            name = path.relative_to(ROOT).as_posix()
            if package in PACKAGES:
                name = f"tweetrerank/{name}"
            yield name


@pytest.mark.slow
def test_every_file_ships_under_one_name(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        members = wheel.namelist()
    licences = {name.rpartition("/licenses/")[2] for name in members}
    assert {"LICENSE", "NOTICE"} <= licences
    files = {name for name in members if ".dist-info/" not in name}
    assert "tweetrerank/py.typed" in files
    assert files == set(shipped_files())


@pytest.mark.slow
def test_building_leaves_nothing_behind(distributions: Distributions) -> None:
    assert distributions.left_behind == set()
    assert distributions.wheel.stat().st_size <= LARGEST_WHEEL
    archives = (distributions.source, distributions.wheel)
    run_python("-m", "twine", "check", "--strict", *archives, code=0)


@pytest.mark.slow
def test_the_wheel_searches_the_sample(
    distributions: Distributions, tmp_path: Path
) -> None:
    """In an environment of its own, to which this one lends the dependencies."""
    environment = tmp_path / "environment"
    venv.create(environment)
    python = environment / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run_python(*pip, distributions.wheel, code=0)
    packages = site_packages(environment)
    # A line of a .pth file adds a folder, but reads no .pth file there: nothing of
    # this checkout.
    dependencies = site_packages(Path(sys.prefix))
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    program = environment / "bin" / "tweetrerank"
    search = ("search", "--topics", "sample", "--reranker", "mp_hcnn")
    process = run_program(
        program,
        *search,
        "--output",
        "run",
        cwd=tmp_path,
        code=0,
        TWEETRERANK_HOME=str(tmp_path / "home"),
        PYTHONPATH="",
    )
    checkpoint = packages / "tweetrerank" / "rerankers" / "checkpoints" / "mp_hcnn"
    assert str(checkpoint) in process.stderr
    assert "mp_hcnn + ql" in process.stdout
    assert (tmp_path / "run").is_file()


def site_packages(environment: Path) -> Path:
    """The folder of an environment's packages."""
    base = str(environment)
    variables = {"base": base, "platbase": base}
    return Path(sysconfig.get_path("purelib", vars=variables))
