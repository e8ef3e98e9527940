"""What an installation brings: pinned versions, declared dependencies, every file needed."""

import ast
import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "rerankers", "indexes")
LARGEST_CHECKPOINTS = 40 * 10**6  # bytes, all that ship together

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
EXTRAS = {
    name: [Requirement(line) for line in lines]
    for name, lines in PROJECT["optional-dependencies"].items()
}
RUNTIME = [Requirement(line) for line in PROJECT["dependencies"]]


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def pins() -> dict[str, Version]:
    """Canonical name -> version, as scripts/constraints.txt has them."""
    found: dict[str, Version] = {}
    for line in (ROOT / "scripts" / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in found, f"{name} is pinned twice"
            found[canonicalize_name(name)] = Version(version)
    return found


def unpinned(requirements: list[Requirement]) -> set[str]:
    """Names reached from these through the installed packages' own needs, but not pinned."""
    pinned, missing = pins(), set()
    waiting = [(r.name, extra) for r in requirements for extra in ("", *r.extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        if canonicalize_name(name) not in pinned:
            missing.add(name)
            continue
        for need in map(Requirement, metadata.requires(name) or []):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                new = {(need.name, wanted) for wanted in ("", *need.extras)} - seen
                seen |= new
                waiting += new
    return missing


@pytest.mark.parametrize("extra", ["", "cpu", "plot", "dev"])
def test_every_named_dependency_is_pinned_within_its_bounds(extra: str) -> None:
    pinned = pins()
    for requirement in EXTRAS[extra] if extra else RUNTIME:
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in scripts/constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement}: pinned to {version}"


def test_what_the_dependencies_need_is_pinned_too() -> None:
    assert not unpinned([*RUNTIME, *EXTRAS["cpu"], *EXTRAS["dev"]])


def test_an_unpinned_dependency_of_a_dependency_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {name: version for name, version in pins().items() if name != "numpy"}
    monkeypatch.setattr(f"{__name__}.pins", lambda: fewer)
    assert unpinned([Requirement("pyserini")]) == {"numpy"}


def test_pins_can_be_had_on_any_machine() -> None:
    assert not [f"{name}=={version}" for name, version in pins().items() if version.local]


def test_the_build_tool_is_pinned_within_its_bounds() -> None:
    [build_tool] = [Requirement(line) for line in PYPROJECT["build-system"]["requires"]]
    assert build_tool.specifier.contains(pins()[canonicalize_name(build_tool.name)])


def test_the_two_builds_of_faiss_never_meet() -> None:
    assert names(EXTRAS["cpu"]) == {"faiss-cpu"}
    assert names(EXTRAS["gpu"]) == {"faiss-gpu"}
    for others in (RUNTIME, EXTRAS["plot"], EXTRAS["dev"]):
        assert not names(others) & {"faiss-cpu", "faiss-gpu", canonicalize_name(PROJECT["name"])}


def test_the_tests_can_use_every_optional_feature() -> None:
    assert names([*EXTRAS["plot"], *EXTRAS["vectors"]]) <= names(EXTRAS["dev"])


def undeclared(folder: str, declared: set[str]) -> dict[str, str]:
    """Modules of other projects that a folder imports without naming their project."""
    # Tests import each other's helpers, and the packages below scripts/.
    ours = {*PACKAGES, "tests", *(path.stem for path in (ROOT / folder).glob("*.py"))}
    ours |= {path.parent.name for path in (ROOT / "scripts").glob("*/__init__.py")}
    distributions = metadata.packages_distributions()
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported = {node.module.split(".")[0]}
            else:
                continue
            for module in imported:
                known = {canonicalize_name(name) for name in distributions.get(module, [])}
                if module not in ours | sys.stdlib_module_names and not known & declared:
                    found[module] = f"{path.relative_to(ROOT)}:{node.lineno}"
    return found


@pytest.mark.parametrize("folder", [*PACKAGES, "scripts", "tests"])
def test_what_is_imported_is_declared(folder: str) -> None:
    declared = names([*RUNTIME, *EXTRAS["cpu"], *EXTRAS["plot"], *EXTRAS["vectors"]])
    if folder == "tests":
        declared |= names(EXTRAS["dev"])
    assert not undeclared(folder, declared)


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """What setuptools, asked for no build, says that a wheel would hold."""
    program = """
import json
from pathlib import Path
from setuptools import Distribution
distribution = Distribution()
distribution.parse_config_files(["pyproject.toml"])
build = distribution.get_command_obj("build_py")
build.ensure_finalized()
files = [str(Path(folder, name)) for _, folder, _, group in build.data_files for name in group]
print(json.dumps({"packages": distribution.packages, "files": files}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_module_is_shipped(shipped: dict[str, Any]) -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    dotted = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(shipped["packages"]) == dotted, "a folder of modules has no __init__.py"


def test_every_file_beside_the_modules_is_shipped(shipped: dict[str, Any]) -> None:
    lying = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"} and not path.name.startswith(".")
    }
    assert set(shipped["files"]) == lying, "see [tool.setuptools.package-data] in pyproject.toml"


@pytest.mark.parametrize(
    "pattern",
    [
        "*/README.md",
        "pipeline/collections/catalogue.json",
        "pipeline/sample/*",
        "rerankers/checkpoints/*/*/config.json",
        "rerankers/checkpoints/*/*/model.safetensors",
        "rerankers/checkpoints/*/*/vocabulary.json",
    ],
)
def test_what_the_commands_read_is_shipped(shipped: dict[str, Any], pattern: str) -> None:
    assert any(Path(file).match(pattern) for file in shipped["files"])


def test_the_shipped_checkpoints_are_small() -> None:
    files = (ROOT / "rerankers" / "checkpoints").rglob("*")
    assert sum(path.stat().st_size for path in files if path.is_file()) <= LARGEST_CHECKPOINTS


def test_the_named_texts_are_there() -> None:
    for name in (PROJECT["readme"], *PROJECT["license-files"]):
        assert (ROOT / name).is_file(), f"pyproject.toml names {name}"
