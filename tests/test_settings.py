"""NAME=VALUE changes of a configuration."""

from dataclasses import dataclass

import pytest

from pipeline.command.errors import UsageError
from pipeline.command.settings import change


@dataclass(frozen=True)
class Config:
    depth: int = 4
    dropout: float = 0.1
    words: bool = True
    kind: str = "dot"


def test_values_take_the_type_of_their_field() -> None:
    changed = change(Config(), ["depth=2", "dropout=0.5", "words=false", "kind=a=b"])
    assert changed == Config(2, 0.5, False, "a=b")


def test_every_mistake_is_named() -> None:
    with pytest.raises(UsageError) as error:
        change(Config(), ["detph=2", "depth=two", "words=maybe", "dropout"])
    assert len(error.value.problems) == 4
    assert "did you mean 'depth'?" in error.value.problems[0]
