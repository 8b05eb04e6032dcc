"""`make versions`: our files for libraries, each with three versions of its library, beside the torch that is here, and
the observer with an old torch and the newest.

An environment has one version in front of this environment's packages, so that nothing is copied: about 100 MB each,
4 GB for torch, one after another. `python -m tests.library_versions transformers` is one library's. The page
`docs/scripts.md` says what was seen.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
TORCH = "tests/amp_launcher/torch/libraries/"
OBSERVER = "audit casts flops observe_calls operations operators outside precision script_steps".split()
BEFORE_5 = ("huggingface_hub<1", "requests", "urllib3", "idna", "certifi", "charset_normalizer")
LIBRARIES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]]]] = {
    "lightning": (
        (TORCH + "test_lightning_precision.py", TORCH + "test_callbacks.py", "-k", "lightning or plugin or LIGHTNING"),
        {"2.4.0": (), "2.5.6": (), "": ()},
    ),
    "accelerate": (
        (TORCH + "test_callbacks.py", "-k", "accelerate"),
        {"0.34.2": (), "1.8.1": (), "": ()},
    ),
    "transformers": (
        (TORCH + "test_trainer_precision.py", TORCH + "test_callbacks.py", "-k", "trainer or TRAINER"),
        {"4.48.3": (*BEFORE_5, "tokenizers<0.22"), "4.56.2": (*BEFORE_5, "tokenizers<0.23"), "": ()},
    ),
    "keras": (
        ("tests/amp_launcher/around/test_keras_callback.py",),
        {"3.12.0": (), "3.13.2": (), "": ()},  # TensorFlow 2.21 takes no older one
    ),
    "torch": (
        tuple(f"tests/amp_launcher/torch/test_{name}.py" for name in OBSERVER),
        {"2.6.0": (), "": ()},
    ),
}
"""Of each library the tests, and its versions, oldest first, the newest last, with what else each needs. Tests are
chosen by their names; a version that can't be had is no failure of ours, and the first line says so."""


def main(names: list[str]) -> int:
    """How many versions failed, at most 1."""
    failed = 0
    for name in names or LIBRARIES:
        tests, versions = LIBRARIES[name]
        for version, others in versions.items():
            with tempfile.TemporaryDirectory() as folder:
                failed += not _works(Path(folder), name, version, others, tests)
    return min(failed, 1)


def _works(folder: Path, name: str, version: str, others: tuple[str, ...], tests: tuple[str, ...]) -> bool:
    """Print how the tests ended with this version."""
    venv.create(folder, with_pip=False)
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (packages / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wanted = [f"{name}=={version}" if version else name, *others]
    alone = ["--no-deps"] if name != "torch" else []  # whose libraries of CUDA are packages
    install = ["install", "--quiet", *alone, "--upgrade", f"--target={packages}", *wanted]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, stderr=subprocess.DEVNULL)
    (found,) = packages.glob(f"{name}-*.dist-info")
    ended = subprocess.run(
        [str(folder / "bin/python"), "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *tests],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "E  "))]
    print(f"{found.stem.replace('-', ' ').removesuffix('.dist')}: {'works' if not ended.returncode else 'FAILED'}")
    print("".join(f"    {line}\n" for line in lines), end="", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
