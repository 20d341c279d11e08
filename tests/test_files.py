"""Files are written whole or not at all."""

import stat
from pathlib import Path

import pytest

from planner.errors import OutputError
from planner.files import check_apart, check_writable, write_whole


def test_a_new_file_has_the_permissions_that_new_files_have(tmp_path: Path) -> None:
    write_whole(tmp_path / "ours", "x")
    (tmp_path / "usual").write_text("x")
    ours, usual = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "usual"))
    assert usual == ours


def test_a_file_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    write_whole(script, "new")
    assert ("new", 0o750) == (script.read_text(), stat.S_IMODE(script.stat().st_mode))


def test_a_link_is_followed_and_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert "new" == (tmp_path / "real").read_text()
    write_whole(Path("/dev/null"), "gone")
    assert not Path("/dev/null").is_file()


def test_a_place_that_cannot_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "plan.yaml", tmp_path):
        with pytest.raises(OutputError, match="cannot be written"):
            check_writable(path)
    (tmp_path / "old.yaml").write_text("old")
    check_writable(tmp_path / "old.yaml")
    check_writable(tmp_path / "new.yaml")
    assert ["old.yaml"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=f"cannot be written: there is no folder {tmp_path}/no$"):
        write_whole(tmp_path / "no" / "plan.yaml", "x")


def test_what_was_read_is_not_written_over_under_any_name(tmp_path: Path) -> None:
    spec, link = tmp_path / "model.yaml", tmp_path / "link.yaml"
    spec.write_text("old")
    link.symlink_to("model.yaml")
    for path in (spec, link, tmp_path / "." / "model.yaml"):
        with pytest.raises(OutputError, match="is what was read, and would be lost; name another file"):
            check_apart(path, [tmp_path, tmp_path / "absent", spec])
    check_apart(tmp_path / "new.yaml", [spec])
    check_apart(tmp_path / "new.yaml", [tmp_path / "new.yaml"])
