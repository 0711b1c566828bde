"""Sets of encoded images anywhere on disk: trees with one folder per class, and parquet tables."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leantrain.data import decode, parts
from leantrain.data.images import Encoded, FileImages, Folder, ImageSet, Table, check_labels, some, unreadable
from leantrain.errors import LeanError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
HELD_OUT = 0.2
"""The share of a set without a test part that becomes one; the same examples whatever the seed."""

# For every set of files: what pretrained weights expect, and near enough for other natural images.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Part = tuple[Encoded, Tensor]
"""Encoded images and their int64 labels."""


def load(path: Path, name: str, seed: int, image_size: int | None, least_size: int = 0) -> ImageSet:
    """The set at `path`, whichever of the known layouts it has."""
    if not path.exists():
        raise LeanError(f"There is no folder or file at {str(path)!r}; check the path given to --data.")
    tables = _tables(path)
    train, test, classes = _read_tables(path, tables) if tables else _read_tree(path)
    return image_set(str(path), name, train, test, classes, seed, image_size, least_size)


def image_set(
    where: str,
    name: str,
    train: Part,
    test: Part | None,
    classes: tuple[str, ...],
    seed: int,
    image_size: int | None,
    least_size: int,
) -> ImageSet:
    """A set of encoded images; where it has no test part, a fixed share of it becomes one."""
    if test is None:
        kept, held = parts.stratified(train[1], HELD_OUT)
        if not len(held):
            raise LeanError(
                f"{where!r} has no test part and too few images per class to split one off; "
                "add images, or give it train and val folders."
            )
        train, test = _select(train, kept), _select(train, held)
    size = image_size or max(least_size, _fitting_size(train[0]))
    pad = 0 if size > decode.SMALL else 8 if size > 48 else 4
    return ImageSet(
        name=name,
        where=repr(where),
        train=FileImages(*train, size, seed),
        test=FileImages(*test, size, seed),
        classes=classes,
        image_size=size,
        channels=3,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        pad=pad,
        flip=True,
    )


def _select(part: Part, indices: Tensor) -> Part:
    return part[0].select(indices), part[1][indices]


def _fitting_size(source: Encoded, sample: int = 100) -> int:
    """The side to show images at: their own when the usual one is small, 224 otherwise; from headers of a sample."""
    sides, failure = [], None
    for position in np.linspace(0, len(source) - 1, min(sample, len(source))).astype(int).tolist():
        try:
            sides.append(min(decode.shape(source.read(position))))
        except decode.BAD as error:  # one bad image is the business of the run, or of --skip-bad-images
            failure = failure or unreadable(source.name(position), error)
    if not sides:
        raise LeanError(failure or "There are no images.")
    side = float(np.median(sides))
    return max(8, round(side / 4) * 4) if side <= decode.SMALL else 224


# Trees of class folders


def _read_tree(path: Path) -> tuple[Part, Part | None, tuple[str, ...]]:
    if not path.is_dir():
        raise LeanError(f"{str(path)!r} is neither a folder nor a .parquet file; give --data one of these.")
    inside = set(_folders(path))
    held = next((name for name in ("val", "test") if name in inside), None)
    if "train" in inside and held:
        train, classes = _read_classes(path, "train")
        test, test_classes = _read_classes(path, held)
        _same_classes(path, classes, test_classes, held)
        return train, test, classes
    # A folder `train` alone is the training part when it has class folders, and else a class: locomotives.
    alone = inside == {"train"} and _folders(path / "train")
    train, classes = _read_classes(path, "train" if alone else "")
    return train, None, classes


def _same_classes(path: Path, classes: Sequence[str], test_classes: Sequence[str], held: str) -> None:
    only_train, only_test = sorted(set(classes) - set(test_classes)), sorted(set(test_classes) - set(classes))
    if only_train or only_test:
        where = [f"{some(names)} only in {part}" for names, part in ((only_train, "train"), (only_test, held)) if names]
        raise LeanError(
            f"The classes of {str(path)!r} differ between train and {held}: {', and '.join(where)}; "
            "give both the same class folders."
        )


def _read_classes(root: Path, below: str) -> tuple[Part, tuple[str, ...]]:
    """Every image of the class folders in a folder below `root`, in a fixed order."""
    place = repr(str(root / below))
    classes = _folders(root / below)
    if not classes:
        raise LeanError(f"{place} has no class folders; put the images of each class into a folder named after it.")
    found = [images_below(root, os.path.join(below, name)) for name in classes]
    if not any(found):
        raise LeanError(f"{place} has no images; expected files ending in {', '.join(EXTENSIONS)}.")
    empty = [name for name, files in zip(classes, found, strict=True) if not files]
    if empty:
        raise LeanError(f"{place} has no images of class {some(empty)}; add some or remove the folder.")
    sizes = torch.tensor([len(files) for files in found])
    targets = torch.repeat_interleave(torch.arange(len(classes)), sizes)
    return (Folder(str(root), tuple(file for files in found for file in files)), targets), tuple(classes)


def _folders(path: Path) -> list[str]:
    with _scan(str(path)) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))


def images_below(root: Path, below: str) -> list[str]:
    """Paths of the images anywhere below a class folder, relative to the tree's root."""
    files: list[str] = []
    waiting: list[tuple[str, frozenset[str]]] = [(below, frozenset())]  # with the folders that links led through
    while waiting:
        folder, above = waiting.pop()
        with _scan(os.path.join(root, folder)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.name.lower().endswith(EXTENSIONS):
                    files.append(os.path.join(folder, entry.name))
                elif _is_folder(entry):
                    followed = above | _link(entry, above) if entry.is_symlink() else above
                    waiting.append((os.path.join(folder, entry.name), followed))
    return sorted(files)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _link(entry: os.DirEntry[str], followed: frozenset[str]) -> frozenset[str]:
    """Where a link leads; refused where that is above it, or where another link has led on the way here."""
    here, there = os.path.realpath(os.path.dirname(entry.path)), os.path.realpath(entry.path)
    if there in followed or os.path.join(here, "").startswith(os.path.join(there, "")):
        raise LeanError(
            f"The link {entry.path!r} leads to a folder that it lies in, and so around in a circle; remove it."
        )
    return frozenset({there})


def _scan(path: str) -> Any:
    try:
        return os.scandir(path)
    except OSError as error:
        raise LeanError(f"The folder {path!r} cannot be read ({error.strerror}); check its permissions.") from error


# Parquet tables


def _tables(path: Path) -> list[Path]:
    """The parquet files that `path` names or holds."""
    if path.is_file():
        return [path] if path.suffix.lower() == ".parquet" else []
    return sorted(file for file in path.glob("*.parquet") if not file.name.startswith(".") and file.is_file())


def _read_tables(path: Path, tables: list[Path]) -> tuple[Part, Part | None, tuple[str, ...]]:
    """Train and test by the files' names (train*, and val* or else test*); one pool when either is missing."""
    by_part = {name: [file for file in tables if file.name.startswith(name)] for name in ("train", "val", "test")}
    held = by_part["val"] or by_part["test"]
    train_files, test_files = (by_part["train"], held) if by_part["train"] and held else (tables, [])
    train_table, names = _table(train_files)
    test_table, test_names = _table(test_files) if test_files else (None, None)
    if names and test_names and names != test_names:
        raise LeanError(
            f"The classes of {str(path)!r} differ between its parts: {some(names)} in train, {some(test_names)} in "
            "the other; give both the same classes in the same order."
        )
    source, labels = _encoded(path, train_table)
    test_source, test_labels = _encoded(path, test_table) if test_table is not None else (None, None)
    if names is None:
        names = _class_names(labels)
    train: Part = (source, _numbered(path, labels, names))
    if test_source is None or test_labels is None:
        return train, None, names
    return train, (test_source, _numbered(path, test_labels, names)), names


def _table(files: list[Path]) -> tuple[Any, tuple[str, ...] | None]:
    """The image and label columns of some files as one table, and class names if Hugging Face wrote any."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    read, names = [], None
    for file in files:
        try:
            schema = pq.read_schema(file)
            missing = [column for column in ("image", "label") if column not in schema.names]
            if missing:
                raise LeanError(
                    f"{str(file)!r} has no column {' and '.join(map(repr, missing))} among {some(schema.names)}; "
                    "rename its columns to 'image' and 'label'."
                )
            _check_types(file, schema.field("image").type, schema.field("label").type)
            read.append(pq.read_table(file, columns=["image", "label"]))
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split()).rstrip(".")
            raise LeanError(f"{str(file)!r} cannot be read as parquet ({why}); write it again.") from error
        names = names or _names_in(schema.metadata)
    try:
        return pa.concat_tables([table.replace_schema_metadata(None) for table in read]), names
    except pa.ArrowException as error:
        raise LeanError(
            f"The parquet files beside {str(files[0])!r} have columns of different types; write them alike."
        ) from error


def _check_types(file: Path, image: Any, label: Any) -> None:
    """Refuse what is not one encoded image with one class."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(image):
        image = image.field("bytes").type if image.get_field_index("bytes") >= 0 else image
    if not (types.is_binary(image) or types.is_large_binary(image)):
        raise LeanError(
            f"The image column of {str(file)!r} is {image}, not encoded images; write the bytes of JPEG or PNG files."
        )
    if types.is_dictionary(label):
        label = label.value_type
    if types.is_list(label) or types.is_large_list(label) or types.is_fixed_size_list(label):
        raise LeanError(
            f"The label column of {str(file)!r} holds lists ({label}), and examples with several labels are not "
            "supported; give each image one class."
        )
    if types.is_floating(label) or types.is_decimal(label):
        raise LeanError(
            f"The label column of {str(file)!r} holds fractions ({label}), and soft labels are not supported; "
            "give each image one class, as an integer or a string."
        )
    if not (
        types.is_integer(label) or types.is_boolean(label) or types.is_string(label) or types.is_large_string(label)
    ):
        raise LeanError(f"The label column of {str(file)!r} is {label}; give classes as integers or strings.")


def _names_in(metadata: dict[bytes, bytes] | None) -> tuple[str, ...] | None:
    """The class names that the `datasets` library keeps in a file's schema."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = features["label"]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return tuple(map(str, names)) if isinstance(names, list) and names else None


def _encoded(path: Path, table: Any) -> tuple[Table, Any]:
    """A table's images as one block of bytes, and its labels as a pyarrow array without dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    images, labels = table.column("image"), table.column("label")
    if not len(table):
        raise LeanError(f"{str(path)!r} has a part without rows; add images or remove the file.")
    if pa.types.is_struct(images.type):
        images = pc.struct_field(images, "bytes")
    for column, kind in ((images, "image bytes"), (labels, "label")):
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise LeanError(f"{str(path)!r} has no {kind} in {column.null_count} rows, first in row {row}; fill them.")
    images = images.cast(pa.large_binary()).combine_chunks()  # 64-bit offsets: a set may pass 2 GB
    if isinstance(images, pa.ChunkedArray):
        images = images.chunk(0)
    if pa.types.is_dictionary(labels.type):
        labels = labels.cast(labels.type.value_type)
    _, offsets, block = images.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[images.offset : images.offset + len(images) + 1]
    pixels = np.frombuffer(block, dtype=np.uint8) if block is not None else np.empty(0, dtype=np.uint8)
    return Table(str(path), pixels, bounds[:-1], bounds[1:], torch.arange(len(images))), labels


def _class_names(labels: Any) -> tuple[str, ...]:
    """Classes as the training labels have them: strings in order, integers from 0 to the highest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type):
        return tuple(sorted(pc.unique(labels).to_pylist()))
    highest = int(pc.max(labels.cast(pa.uint8()) if pa.types.is_boolean(labels.type) else labels).as_py())
    # A label beyond the number of examples leaves classes without any; the check for those names the remedy, and
    # this bound keeps a stray 10¹² from filling the memory first.
    return tuple(str(number) for number in range(min(highest + 1, len(labels))))


def _numbered(path: Path, labels: Any, names: tuple[str, ...]) -> Tensor:
    """Labels as int64 class numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type):
        numbers = pc.index_in(labels, value_set=pa.array(names, type=labels.type))
        if numbers.null_count:
            strange = sorted(set(pc.unique(labels).to_pylist()) - set(names))
            raise LeanError(
                f"The classes of {str(path)!r} differ between its parts: {some(strange)} not among the training "
                "classes; give both parts the same classes."
            )
    else:
        try:
            numbers = labels.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise LeanError(f"{str(path)!r} has labels beyond 64 bits ({error}); number the classes from 0.") from error
    targets = torch.from_numpy(numbers.cast(pa.int64()).to_numpy().copy())
    check_labels(targets, len(names), repr(str(path)))
    return targets
