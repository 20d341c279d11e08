"""Records are what dataclasses would be: frozen, slotted, with keywords only."""

from typing import Generic, TypeVar

import pytest

from planner.records import as_dict, field, record, replace

T = TypeVar("T")


@record
class Size:
    """Has one name that is required and one that is not."""

    width: int
    height: int = 2

    @property
    def area(self) -> int:
        return self.width * self.height


@record
class Box(Generic[T]):
    content: T
    labels: list[str] = field(default_factory=list)


@record(eq=False)
class Thing:
    name: str


def test_a_record_has_what_it_is_given_and_its_defaults() -> None:
    assert (3, 2, 6) == (Size(width=3).width, Size(width=3).height, Size(width=3).area)
    assert {"width": 3, "height": 4} == as_dict(Size(height=4, width=3))
    assert "Size(width=3, height=2)" == repr(Size(width=3))


def test_records_are_equal_when_all_their_values_are() -> None:
    assert Size(width=1) == Size(width=1, height=2) != Size(width=2)
    assert 1 == len({Size(width=1), Size(width=1)})
    assert Size(width=1) != (1, 2)
    assert Thing(name="a") != Thing(name="a")
    assert 2 == len({Thing(name="a"), Thing(name="a")})


def test_a_record_with_other_values_leaves_the_first_as_it_was() -> None:
    first = Size(width=1, height=5)
    assert Size(width=9, height=5) == replace(first, width=9)
    assert Size(width=1, height=5) == first


def test_each_record_gets_its_own_default_where_that_can_change() -> None:
    one, other = Box(content=1), Box(content=1)
    one.labels.append("x")
    assert [] == other.labels
    assert Box(content=1, labels=["x"]) == one


def test_a_record_cannot_be_changed_or_have_other_names() -> None:
    size = Size(width=1)
    with pytest.raises(AttributeError, match="Size is frozen: width"):
        size.width = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Size is frozen: width"):
        del size.width
    with pytest.raises(AttributeError):
        size.depth = 2  # type: ignore[attr-defined]


def test_values_that_are_missing_or_too_many_are_named() -> None:
    with pytest.raises(TypeError, match="Size needs width"):
        Size()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Size has no depth"):
        Size(width=1, depth=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Size(1)  # type: ignore[misc]
