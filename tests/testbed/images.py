"""Small container images, made here with debootstrap: Debian with its own Python, and the same with PyTorch in it.

Each is there three times: a sandbox folder, a SIF file, and an image of the Docker engine.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.testbed import apptainer, docker, sources
from tests.testbed.bed import Bed, output_of, remove_folder, run, write

# What the images hold. Changing any of it makes them anew.
RELEASE_PACKAGES = ("python3",)
TORCH_PACKAGES = ("torch==2.13.0", "numpy", "scikit-learn")
NAMES = ("python", "torch")
RECIPE = hashlib.sha256(repr((RELEASE_PACKAGES, TORCH_PACKAGES, 2)).encode()).hexdigest()[:8]
PYTHON = "/usr/bin/python3"


def folder(bed: Bed) -> Path:
    return bed.folder / "images" / RECIPE


def sandbox(bed: Bed, name: str) -> Path:
    """The image as a plain folder: what debootstrap made."""
    return folder(bed) / name


def sif(bed: Bed, name: str) -> Path:
    return folder(bed) / f"{name}.sif"


def docker_name(name: str) -> str:
    return f"testbed-{name}:local"


def interpreter(bed: Bed) -> Path:
    """Debian's Python outside any container, with the torch image's packages: for jobs of users who can't read the
    folder that the tests' own virtual environment is in."""
    return bed.folder / "python" / "bin" / "python"


def make_python(bed: Bed) -> str:
    """The root file system with Python."""

    def make(root: Path) -> None:
        release = sources.codename()
        mirror = sources.mirror(release)
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(RELEASE_PACKAGES)}"]
        run([*argv, f"--keyring={sources.KEYRING}", release, root, mirror.uri], log=bed.log("debootstrap"))
        for path in [*root.glob("var/cache/apt/archives/*.deb"), *root.glob("var/lib/apt/lists/*_*")]:
            path.unlink()
        _configure_apt(root, release)

    for other in bed.part("images").iterdir():
        if other != folder(bed):
            remove_folder(other)  # images of an older recipe
    return _once(sandbox(bed, "python"), make)


def make_packages(bed: Bed) -> str:
    """PyTorch for Debian's own Python, by pip as this machine has it configured."""

    def make(target: Path) -> None:
        log = bed.log("pip")
        # Compiled afterwards, on all cores: a read-only image can't keep what an import compiles.
        argv = [PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", "--target", target, *TORCH_PACKAGES]
        run(argv, log=log)
        # It fails for the few files that are written for a newer Python, and nothing imports those.
        output_of([PYTHON, "-m", "compileall", "-qq", "-j", "0", str(target)], timeout=900)

    if sandbox(bed, "torch").exists():
        return "all there"
    return _once(_packages(bed), make)


def make_torch(bed: Bed) -> str:
    """The Python image's root file system with PyTorch in the place where Debian's pip would put it."""

    def make(root: Path) -> None:
        run(["cp", "--archive", sandbox(bed, "python"), root], log=bed.log("images"))
        place = next(root.glob("usr/local/lib/python3.*"), None)
        version = output_of([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        place = place or root / "usr/local/lib" / f"python{(version or '3').strip()}"
        place.mkdir(exist_ok=True)
        remove_folder(place / "dist-packages")
        shutil.move(_packages(bed), place / "dist-packages")

    done = _once(sandbox(bed, "torch"), make)
    _make_interpreter(bed)
    return done


def make_sif(bed: Bed, name: str) -> str:
    def make(path: Path) -> None:
        # Fast to make rather than small.
        argv = [apptainer.program(bed), "build", "--mksquashfs-args", "-comp zstd -Xcompression-level 1"]
        env = {"APPTAINER_CACHEDIR": str(bed.part("cache")), "APPTAINER_TMPDIR": str(bed.part("cache"))}
        run([*argv, path, sandbox(bed, name)], log=bed.log("images"), env=env)

    return _once(sif(bed, name), make)


def make_docker(bed: Bed, name: str) -> str:
    if docker.has_image(bed, docker_name(name), RECIPE):
        return "all there"
    docker.import_image(bed, sandbox(bed, name), docker_name(name), RECIPE)
    return "made"


def _once(path: Path, make: Callable[[Path], None]) -> str:
    """Make a file or folder under another name and rename it, so that what is there is whole."""
    if path.exists():
        return "all there"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"new-{path.name}")
    remove_folder(aside)
    make(aside)
    aside.rename(path)
    return "made"


def _packages(bed: Bed) -> Path:
    return folder(bed) / "packages"


def _configure_apt(root: Path, release: str) -> None:
    """`apt-get` inside the image works as it does outside: same mirror, same opinion of old release files."""
    ours = [source for source in sources.sources() if source.suite.startswith(release)]
    lines = [f"deb {source.uri} {source.suite} {source.component}\n" for source in ours]
    write(root / "etc/apt/sources.list", "".join(lines))
    settings = (output_of(["apt-config", "dump"]) or "").splitlines()
    kept = [f"{line}\n" for line in settings if line.startswith(("Acquire::Check-", "Acquire::http", "Acquire::https"))]
    kept.append('Acquire::Languages "none";\n')
    write(root / "etc/apt/apt.conf.d/90testbed", "".join(kept))


def _make_interpreter(bed: Bed) -> None:
    home = bed.folder / "python"
    if not interpreter(bed).exists():
        remove_folder(home)
        run([PYTHON, "-m", "venv", "--without-pip", home], log=bed.log("images"))
    packages = next(sandbox(bed, "torch").glob("usr/local/lib/python3.*/dist-packages"))
    write(next(home.glob("lib/python3.*/site-packages")) / "torch-image.pth", f"{packages}\n")
