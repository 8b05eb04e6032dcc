"""ImageNet's images, from folders of JPEG files or from TFRecord files: found, decoded, cropped.

What a sample looks like in an epoch is a function of (seed, epoch, index). Crops are those of NVIDIA's ResNet50 v1.5:
for training a random part of 8% to 100% of the image, its sides 3:4 to 4:3, mirrored every other time; for evaluation
the middle of the image, which is first made an eighth larger than needed.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from recipes import cgroup_limits, sampling
from recipes.data import tfrecord
from recipes.settings import Data
from recipes.typed import SettingsError

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, from 0 to 1."""
SUFFIXES = (".jpeg", ".jpg", ".png")
ATTEMPTS = 10
LARGER = 256 / 224


@dataclass(frozen=True, kw_only=True, slots=True)
class Photographs:
    """Labelled images in files. `places` are paths; of TFRecord files, `records` says where in them each image is."""

    places: Sequence[Path]
    labels: numpy.ndarray
    """int64 of shape [count]; of TFRecord files empty, since each record holds its own."""
    records: numpy.ndarray | None = None
    size: int
    classes: int
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(cgroup_limits.cpus(), "decode"), compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.places) if self.records is None else len(self.records)

    def digest(self) -> str:
        """SHA-256 of the names and the places, not of the contents, which may take hours to read."""
        digest = hashlib.sha256("\n".join(map(str, self.places)).encode())
        if self.records is not None:
            digest.update(self.records)
        return f"sha256:{digest.hexdigest()}"

    def augmented(self, seed: int, epoch: int, indices: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Images as that epoch sees them: uint8 [*indices.shape, size, size, 3]; labels, int64 of indices' shape."""
        return self._all(indices, lambda image, index: _random_crop(image, self.size, seed, epoch, index))

    def plain(self, indices: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """The middle of the images, in the same shapes."""
        return self._all(indices, lambda image, index: _center_crop(image, self.size))

    def _all(self, indices: numpy.ndarray, crop: Any) -> tuple[numpy.ndarray, numpy.ndarray]:
        flat = [int(each) for each in indices.reshape(-1)]
        found = list(self._threads.map(lambda index: self._one(index, crop), flat))
        images = numpy.stack([image for image, _ in found]).reshape(*indices.shape, self.size, self.size, 3)
        labels = numpy.array([label for _, label in found], dtype=numpy.int64).reshape(indices.shape)
        return images, labels

    def _one(self, index: int, crop: Any) -> tuple[numpy.ndarray, int]:
        from PIL import Image, UnidentifiedImageError

        if self.records is None:
            path, label = self.places[index], int(self.labels[index])
            content: Any = path
        else:
            file, offset, length = self.records[index]
            path = self.places[file]
            encoded, written = tfrecord.read(path, int(offset), int(length))
            content, label = io.BytesIO(encoded), written - 1  # 0 is the background there
            if not 0 <= label < self.classes:
                raise SettingsError(f"{path} has the label {written}, and train.classes={self.classes}", "data.dir")
        try:
            with Image.open(content) as image:
                return numpy.asarray(crop(image.convert("RGB"), index)), label
        except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
            raise SettingsError(f"{path} is no image that can be read: {error}", "data.dir") from None


def synthetic(seed: int, count: int, size: int, classes: int) -> tuple[numpy.ndarray, numpy.ndarray, str]:
    """Random images, uint8 [count, size, size, 3], with random labels, int64 [count]; and their digest."""
    random = numpy.random.Generator(numpy.random.Philox(seed % 2**64))
    images = random.integers(0, 256, (count, size, size, 3), dtype=numpy.uint8)
    labels = random.integers(0, classes, count)
    digest = hashlib.sha256(images)
    digest.update(labels)
    return images, labels, f"sha256:{digest.hexdigest()}"


def load(data: Data, size: int, classes: int) -> tuple[Photographs, Photographs]:
    """What is trained on and what is held out. Raises `SettingsError` for what isn't there or is laid out otherwise."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise SettingsError(f"data={data.name} needs Pillow: pip install pillow", "data.name") from None
    if data.dir is None:
        raise SettingsError(f"data={data.name} needs data.dir=FOLDER", "data.dir")
    folder = Path(data.dir)
    if data.name == "tfrecord":
        return _records(folder, "train", size, classes), _records(folder, "validation", size, classes)
    names = _classes(folder, "train", classes)
    for name in _classes(folder, "val", classes):
        if name not in names:
            raise SettingsError(f"{folder}/val has a folder {name}, and {folder}/train has none", "data.dir")
    return _folders(folder / "train", names, size), _folders(folder / "val", names, size)


def _classes(folder: Path, part: str, classes: int) -> list[str]:
    """The folders of one part, whose sorted names are numbered as labels."""
    inside = folder / part
    if not inside.is_dir():
        raise SettingsError(
            f"data.dir={folder} has no folder {part}; it should hold train/CLASS/*.JPEG, val/CLASS/*.JPEG", "data.dir"
        )
    names = sorted(each.name for each in os.scandir(inside) if each.is_dir())
    if len(names) != classes:
        raise SettingsError(
            f"{inside} has {len(names)} folder{'s' * (len(names) != 1)} of images, and train.classes={classes}"
            + (f"; say train.classes={len(names)}" if len(names) > 1 else f"; it should hold {part}/CLASS/*.JPEG"),
            "train.classes",
        )
    return names


def _folders(inside: Path, names: Sequence[str], size: int) -> Photographs:
    places, labels = [], []
    for label, name in enumerate(names):
        files = sorted(each.name for each in os.scandir(inside / name) if each.name.lower().endswith(SUFFIXES))
        if not files:
            raise SettingsError(
                f"{inside / name} has no files {', '.join('*' + each for each in SUFFIXES)}", "data.dir"
            )
        places += [inside / name / each for each in files]
        labels += [label] * len(files)
    return Photographs(places=places, labels=numpy.array(labels, dtype=numpy.int64), size=size, classes=len(names))


def _records(folder: Path, part: str, size: int, classes: int) -> Photographs:
    files = tfrecord.files(folder, part)
    records = tfrecord.index(files)
    if not len(records):
        raise SettingsError(f"the TFRecord files {part}-*-of-* in {folder} are empty", "data.dir")
    return Photographs(
        places=files, labels=numpy.array([], dtype=numpy.int64), records=records, size=size, classes=classes
    )


def _random_crop(image: Any, size: int, seed: int, epoch: int, index: int) -> Any:
    from PIL import Image

    drawn = [float(each) for each in sampling.uniforms(seed, epoch, index, 2 * ATTEMPTS + 3)]
    width, height = image.size
    box = _random_box(width, height, drawn)
    cropped = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if drawn[-1] < 0.5 else cropped


def _random_box(width: int, height: int, drawn: Sequence[float]) -> tuple[int, int, int, int]:
    """Left, upper, right and lower edge: the first of ten draws that fits into the image, else its middle square."""
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
