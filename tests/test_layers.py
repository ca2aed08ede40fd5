"""The layers of csrc/: an #include stays in its folder or points down, never up or across."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "csrc"

# From the top; the folders of one line are siblings and do not include each other.
LAYERS = [
    ["."],  # the c10d face: bindings, process group, work
    ["engine"],
    ["collectives", "cuda"],  # cuda is a module of its own
    ["codec", "transport"],
    ["common"],
]
DEPTH = {folder: depth for depth, folders in enumerate(LAYERS) for folder in folders}


def layer(path: Path) -> str:
    """The layer of a path relative to csrc/: its first folder."""
    return path.parts[0] if len(path.parts) > 1 else "."


def violations(root: Path) -> list[str]:
    """One line for each quoted #include under `root` that the layers forbid or leads nowhere."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        source = path.relative_to(root)
        if layer(source) not in DEPTH:
            found.append(f"{source}: its folder has no place among the layers")
            continue
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            target = Path(name)
            if not (root / target).is_file():
                found.append(f"{source}: {name} is not a path from csrc/")
            elif layer(target) != layer(source) and DEPTH[layer(target)] <= DEPTH[layer(source)]:
                found.append(f"{source}: includes {name}, which is not below it")
    return found


def test_includes_point_only_downward() -> None:
    assert len(list(SOURCES.rglob("*.cpp"))) > 1
    assert violations(SOURCES) == []


@pytest.mark.parametrize(
    ("source", "include", "verdict"),
    [
        ("process_group.cpp", "engine/engine.h", []),
        ("process_group.cpp", "work.h", []),
        ("engine/engine.cpp", "common/log.h", []),
        ("transport/shm/ring.cpp", "transport/transport.h", []),
        ("engine/engine.cpp", "work.h", ["is not below it"]),
        ("common/log.cpp", "transport/transport.h", ["is not below it"]),
        ("codec/cast.cpp", "transport/transport.h", ["is not below it"]),
        ("engine/engine.cpp", "engine.h", ["is not a path from csrc/"]),
        ("manager/manager.cpp", "work.h", ["has no place among the layers"]),
    ],
)
def test_the_rule_itself(tmp_path: Path, source: str, include: str, verdict: list[str]) -> None:
    for name in ("work.h", "engine/engine.h", "common/log.h", "transport/transport.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / source).write_text(f'#include <vector>\n  # include "{include}" // why\n')
    found = violations(tmp_path)
    assert len(found) == len(verdict)
    assert all(text in line for text, line in zip(verdict, found, strict=True))
