"""A paper that is made up: a quick method on a scene that comes with the package."""

import pytest
from milzoo.estimators import ScoreLearner
from milzoo.models import NeighbourScore
from milzoo.papers import Attempt, Cell, Exhibit, Paper, Protocol, Published
from milzoo.papers.protocols import stratified_folds, thirds

DATA = "kandemir2014"
GRID = {"neighbourhood_score": [NeighbourScore(k) for k in (1, 3)]}


def neighbours(bags, memory):
    return ScoreLearner(NeighbourScore(1)), dict(GRID)


HONEST = Protocol("honest", "Three folds.", stratified_folds(3))
PEEKING = Protocol(
    "as published",
    "Three folds, settings by the test bags.",
    stratified_folds(3),
    chosen_by="test bags",
    peeks="settings are chosen by the test bags",
)
MAXIMUM = Protocol(
    "as published",
    "The best of three splits.",
    thirds(3),
    reports="maximum",
    peeks="the best of three splits is reported",
)


@pytest.fixture(scope="session")
def paper():
    accuracy = {"accuracy": Published(0.9)}
    both = (Attempt(PEEKING, neighbours), Attempt(HONEST, neighbours))
    cells = (
        Cell("neighbours", DATA, accuracy, both, why="the scene is another one"),
        Cell("best of three", DATA, {"auc": Published(0.8, 0.1)}, (Attempt(MAXIMUM, neighbours),)),
        Cell("oracle", DATA, accuracy, missing="an oracle"),
    )
    again = Exhibit("table-2", "The same again", (Cell("kNN", DATA, accuracy, both),))
    figure = Exhibit("figure-1", "A picture", missing="a camera")
    return Paper(
        "author-2000",
        "Author (2000), A paper.",
        (Exhibit("table-1", "Scores", cells), again, figure),
        "Folds are not told.",
    )
