"""ImageNet's images, from folders of JPEG files.

A sample's crop in an epoch is a function of (seed, epoch, index). Crops are those of NVIDIA's ResNet50 v1.5: for
training, a random part of 8% to 100% of the image with sides 3:4 to 4:3, mirrored with probability 0.5; for evaluation,
the center of the image after it is resized to an eighth more than needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from amp_launcher.loop import sampling
from amp_launcher.settings import Data
from amp_launcher.typed import SettingsError
from amp_launcher.world import cgroup_limits

from . import DataError, digest

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, on a scale from 0 to 1."""
SUFFIXES = (".jpeg", ".jpg", ".png")
ATTEMPTS = 10
LARGER = 256 / 224


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFiles:
    """Labelled images, one in each file."""

    paths: Sequence[Path]
    labels: numpy.ndarray
    """int64 of shape [count]."""
    size: int
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(cgroup_limits.cpus(), "decode"), compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.paths)

    def digest(self) -> str:
        """SHA-256 of the paths, not of the contents, which may take hours to read."""
        return digest("\n".join(map(str, self.paths)).encode())

    def augmented(self, seed: int, epoch: int, indices: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Random crops for an epoch: uint8 [*indices.shape, size, size, 3]; and labels, int64 of indices' shape."""
        return self._all(indices, lambda image, index: _random_crop(image, self.size, seed, epoch, index))

    def plain(self, indices: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Center crops, in the same shapes."""
        return self._all(indices, lambda image, index: _center_crop(image, self.size))

    def _all(self, indices: numpy.ndarray, crop: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
        samples = list(self._threads.map(lambda index: self._one(int(index), crop), indices.reshape(-1)))
        images = numpy.stack([image for image, _ in samples]).reshape(*indices.shape, self.size, self.size, 3)
        labels = numpy.array([label for _, label in samples], dtype=numpy.int64).reshape(indices.shape)
        return images, labels

    def _one(self, index: int, crop: Any) -> tuple[numpy.ndarray, int]:
        from PIL import Image, UnidentifiedImageError

        path = self.paths[index]
        try:
            with Image.open(path) as image:
                return numpy.asarray(crop(image.convert("RGB"), index)), int(self.labels[index])
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} is no image that can be read: {error}") from None


def synthetic(seed: int, count: int, size: int, classes: int) -> tuple[numpy.ndarray, numpy.ndarray, str]:
    """Random images, uint8 [count, size, size, 3], random labels, int64 [count], and their digest."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    images = random.integers(0, 256, (count, size, size, 3), dtype=numpy.uint8)
    labels = random.integers(0, classes, count)
    return images, labels, digest(images, labels)


def load(data: Data, size: int, classes: int) -> tuple[ImageFiles, ImageFiles]:
    """The training and the held-out images. Raises `SettingsError` for missing folders and files, and other layouts."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise SettingsError(f"data={data.name} needs Pillow: pip install pillow", "data.name") from None
    if data.dir is None:
        raise DataError(f"data={data.name} needs data.dir=FOLDER")
    folder = Path(data.dir)
    names = _classes(folder, "train", classes)
    for name in _classes(folder, "val", classes):
        if name not in names:
            raise DataError(f"{folder}/val has a folder {name}, and {folder}/train has none")
    return _folders(folder / "train", names, size), _folders(folder / "val", names, size)


def _classes(folder: Path, part: str, classes: int) -> list[str]:
    """The sorted names of one part's folders; their positions are the labels."""
    inside = folder / part
    if not inside.is_dir():
        raise DataError(f"data.dir={folder} has no folder {part}; it should hold train/CLASS/*.JPEG, val/CLASS/*.JPEG")
    names = sorted(entry.name for entry in os.scandir(inside) if entry.is_dir())
    if len(names) != classes:
        raise SettingsError(
            f"{inside} has {len(names)} folder{'s' * (len(names) != 1)} of images, and train.classes={classes}"
            + (f"; say train.classes={len(names)}" if len(names) > 1 else f"; it should hold {part}/CLASS/*.JPEG"),
            "train.classes",
        )
    return names


def _folders(inside: Path, names: Sequence[str], size: int) -> ImageFiles:
    paths, labels = [], []
    for label, name in enumerate(names):
        files = sorted(entry.name for entry in os.scandir(inside / name) if entry.name.lower().endswith(SUFFIXES))
        if not files:
            raise DataError(f"{inside / name} has no files {', '.join(f'*{suffix}' for suffix in SUFFIXES)}")
        paths += [inside / name / file for file in files]
        labels += [label] * len(files)
    return ImageFiles(paths=paths, labels=numpy.array(labels, dtype=numpy.int64), size=size)


def _random_crop(image: Any, size: int, seed: int, epoch: int, index: int) -> Any:
    from PIL import Image

    drawn = [float(number) for number in sampling.uniforms(seed, epoch, index, 2 * ATTEMPTS + 3)]
    width, height = image.size
    box = _random_box(width, height, drawn)
    cropped = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if drawn[-1] < 0.5 else cropped


def _random_box(width: int, height: int, drawn: Sequence[float]) -> tuple[int, int, int, int]:
    """Left, upper, right and lower edge: of the first draw out of ten that fits the image, else its center square."""
    *shapes, across, down, _ = drawn
    for attempt in range(ATTEMPTS):
        area = (0.08 + 0.92 * shapes[2 * attempt]) * width * height
        ratio = math.exp(math.log(4 / 3) * (2 * shapes[2 * attempt + 1] - 1))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            break
    else:
        wide = high = min(width, height)
        across = down = 0.5
    left, upper = int(across * (width - wide + 1)), int(down * (height - high + 1))
    return left, upper, left + wide, upper + high


def _center_crop(image: Any, size: int) -> Any:
    from PIL import Image

    width, height = image.size
    side = min(width, height) / LARGER
    left, upper = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, upper, left + side, upper + side))
