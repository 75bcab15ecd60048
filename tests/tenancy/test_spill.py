"""Records in files outlive their process, are brought in once, and never by two at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.tenancy.ledger import Record
from serving.tenancy.spill import SUFFIX, Spill

OpenFolder = Callable[..., Spill]


@pytest.fixture
def spill() -> Iterator[OpenFolder]:
    """Opens folders, each as a process of its own would."""
    opened: list[Spill] = []

    def open_folder(folder: Path, most_bytes: int = 10**9) -> Spill:
        opened.append(Spill(folder, most_bytes=most_bytes))
        return opened[-1]

    yield open_folder
    for each in opened:
        each.close()


def records(*numbers: int) -> list[Record]:
    return [(f"a-{number}", 1.5, None) for number in numbers]


def files(folder: Path) -> list[Path]:
    return list(folder.glob(f"*{SUFFIX}"))


def test_what_was_written_is_read_in_order_and_goes(tmp_path: Path, spill: OpenFolder) -> None:
    folder = spill(tmp_path / "spill")
    assert folder.write(records(1, 2))
    assert folder.write(records(3))
    assert folder.read(2) == records(1, 2)
    folder.done()
    assert folder.read(2) == records(3)
    folder.done()
    assert files(tmp_path / "spill") == []
    assert folder.read(2) == []


def test_what_was_not_brought_in_is_read_again(tmp_path: Path, spill: OpenFolder) -> None:
    folder = spill(tmp_path)
    folder.write(records(1, 2))
    assert folder.read(1) == records(1)
    folder.again()
    assert folder.read(5) == records(1, 2)
    folder.done()
    assert folder.read(5) == []


def test_another_process_brings_in_what_a_dead_one_left_and_not_what_a_living_writes(tmp_path: Path, spill: OpenFolder) -> None:
    dead, living, other = spill(tmp_path), spill(tmp_path), spill(tmp_path)
    dead.write(records(1))
    dead.close()
    living.write(records(2))
    assert other.read(5) == records(1)
    other.done()
    assert other.read(5) == []
    living.close()
    assert other.read(5) == records(2)


def test_two_do_not_read_the_same_file(tmp_path: Path, spill: OpenFolder) -> None:
    writer, one, two = spill(tmp_path), spill(tmp_path), spill(tmp_path)
    writer.write(records(1, 2))
    writer.close()
    assert one.read(1) == records(1)
    assert two.read(5) == []
    one.close()
    assert two.read(5) == records(1, 2)


def test_a_line_that_a_killed_process_did_not_finish_is_passed_over(tmp_path: Path, spill: OpenFolder) -> None:
    writer, reader = spill(tmp_path), spill(tmp_path)
    writer.write(records(1))
    writer.close()
    (path,) = files(tmp_path)
    with path.open("ab") as file:
        file.write(b'["a-2",1.')
    assert reader.read(5) == records(1)
    reader.done()
    assert files(tmp_path) == []


def test_a_full_folder_takes_nothing_more_until_there_is_room(tmp_path: Path, spill: OpenFolder) -> None:
    folder = spill(tmp_path, most_bytes=100)
    assert folder.write(records(*range(5)))
    assert not folder.write(records(5))
    assert folder.read(10) == records(*range(5))
    folder.done()
    assert folder.write(records(5))


def test_what_others_left_takes_room_too(tmp_path: Path, spill: OpenFolder) -> None:
    other = spill(tmp_path)
    other.write(records(*range(5)))
    folder = spill(tmp_path, most_bytes=100)
    assert not folder.write(records(*range(5)))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, spill: OpenFolder) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"ledger\.spill_dir: .*/file/spill cannot be written to"):
        spill(tmp_path / "file" / "spill")
