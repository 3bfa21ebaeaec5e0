"""Settings of models, as the command line reads them."""

import pytest
from milzoo.models import CardinalityModel, NormalCardinality
from milzoo.models.parts.settings import Choice, Constructor

POTENTIAL = CardinalityModel.settings["potential"]


def test_a_word_stands_for_its_value():
    assert Choice({"true": True, "false": False})("false") is False
    assert Choice.of("full", "diagonal")("full") == "full"


@pytest.mark.parametrize(
    ("word", "message"),
    [("fulll", "did you mean 'full'"), ("?", "known are full, diagonal")],
)
def test_an_unknown_word_is_refused_with_known_ones(word, message):
    with pytest.raises(ValueError, match=message):
        Choice.of("full", "diagonal")(word)


def test_a_constructor_takes_its_numbers():
    assert POTENTIAL("normal:0.5,0.1") == NormalCardinality(0.5, 0.1)
    assert POTENTIAL("normal") == NormalCardinality()


@pytest.mark.parametrize("text", ["normal:0.5", "normal:a,b", "median", "majority:1"])
def test_a_wrong_constructor_is_refused_with_what_was_expected(text):
    with pytest.raises(ValueError, match=r"^expected normal:MU,SIGMA as in normal:0\.5,0\.1"):
        POTENTIAL(text)


def test_a_misspelt_constructor_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"^did you mean 'normal'\?$"):
        POTENTIAL("norml:0.5,0.1")


@pytest.mark.parametrize("number", ["-1", "-1.5"])
def test_a_mistake_of_the_constructor_keeps_its_message(number):
    def refuse(value):
        raise ValueError(f"{value} is not positive")

    with pytest.raises(ValueError, match=f"^{number} is not positive$"):
        Constructor({("number", 1): refuse}, "number:POSITIVE")(f"number:{number}")
