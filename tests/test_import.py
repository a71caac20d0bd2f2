# SPDX-License-Identifier: BSD-3-Clause
"""`import initcore`: every public name is there, and what is slow to load comes when it is used."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import initcore as ic

# What NumPy does not load itself, and the drawing of a small tensor does not need.
SLOW = {
    "concurrent.futures",
    "hashlib",
    "importlib.metadata",
    "initcore.experiments",
    "initcore.kernels",
    "initcore.results",
    "json",
    "logging",
    "pathlib",
}


def test_what_is_slow_to_load_is_not_loaded():
    code = (
        "import sys, numpy\n"
        "before = set(sys.modules)\n"
        "import initcore\n"
        "print(*set(sys.modules) - before)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(ran.stdout.split())
    assert "initcore.streams" in loaded
    assert not SLOW & loaded


def test_every_public_name_is_there():
    assert set(ic.__all__) <= set(dir(ic))
    for name in ic.__all__:
        assert getattr(ic, name) is not None


def imported(path, package):
    """The modules of the package that one imports when it is imported itself: not in a function,
    and not for a type checker alone."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *(node.module.split(".") if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


def test_no_private_name_is_left_over():
    """What a module has for itself alone it uses."""
    root = Path(ic.__file__).parent
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        stored = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        names = {node.name for node in stored} | {
            target.id
            for node in tree.body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)
        }  # fmt: skip
        used = {
            node.id for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }  # fmt: skip
        private = {name for name in names if name[0] == "_" != name[1:2]}
        assert not private - used, path


ROOMS = ("__main__", "cli", "plot", "experiments", "theory", "kernels", "results")


def room(module):
    """How far to the right a module stands; those of no room, below them all, stand together."""
    name = module.split(".")[1]
    return ROOMS.index(name) if name in ROOMS else len(ROOMS)


def test_data_flows_one_way():
    """No module imports one of a room to its left or, over however many others, itself."""
    root = Path(ic.__file__).parent
    graph = {}
    for path in root.rglob("*.py"):
        parts = ["initcore", *path.relative_to(root).with_suffix("").parts]
        package = parts[:-1]
        name = ".".join(package if parts[-1] == "__init__" else parts)
        graph[name] = imported(path, package)
    own = {name: {other for other in others if other in graph and other != "initcore"}
           for name, others in graph.items() if name != "initcore"}  # fmt: skip
    assert "initcore.results.layers" in own["initcore.theory.chain"]
    upstream = [(name, other) for name, others in own.items() for other in others
                if room(other) < room(name)]  # fmt: skip
    assert not upstream
    graphlib.TopologicalSorter(own).prepare()  # CycleError names the cycle
