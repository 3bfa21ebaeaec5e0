"""Kernel principal components: the textbook's, found in the training bags alone."""

import numpy as np
import pytest
from milzoo.datasets import Bags, kernel_pca
from scipy.spatial.distance import cdist


def make_bags(num_bags, num_features=6, seed=0) -> Bags:
    """Bags with all optional fields, and features of different variances."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 8, num_bags)
    tables = [random.normal(0.5, np.arange(1, num_features + 1), (n, num_features)) for n in sizes]
    labels = np.arange(num_bags) % 2
    known = [np.where(random.random(n) < 0.5, -1, 0) for n in sizes]
    bags = Bags.from_list(tables, labels, known, [f"bag {seed}.{b}" for b in range(num_bags)])
    return bags.with_targets(random.normal(size=num_bags))


@pytest.fixture
def training() -> Bags:
    return make_bags(20)


@pytest.fixture
def test() -> Bags:
    return make_bags(9, seed=1)


def textbook_components(training, bags, num_components, length_scale):
    """Centred kernels to the training instances, times α with ‖α_j‖² = 1/λ_j."""
    rows, new = training.instances, bags.instances

    def kernel(left, right):
        return np.exp(-cdist(left, right, "sqeuclidean") / (2 * length_scale**2))

    size = len(rows)
    centring = np.eye(size) - 1 / size
    eigenvalues, vectors = np.linalg.eigh(centring @ kernel(rows, rows) @ centring)
    largest = np.argsort(-eigenvalues)[:num_components]
    coefficients = vectors[:, largest] / np.sqrt(eigenvalues[largest])
    off_centre = kernel(new, rows) - kernel(rows, rows).mean(axis=0)
    return off_centre @ centring @ coefficients


def assert_same_up_to_sign(found, expected, **tolerance):
    signs = np.sign(np.sum(found * expected, axis=0))
    np.testing.assert_allclose(found, signs * expected, **tolerance)


# --------------------------------------------------------------------- what it computes


@pytest.mark.parametrize(("num_components", "length_scale"), [(3, 5.0), (20, 2.0), (7, None)])
def test_components_are_those_of_the_centred_kernel_matrix(
    training, test, num_components, length_scale
):
    options = {"num_components": num_components, "length_scale": length_scale}
    scale = num_components**0.5 if length_scale is None else length_scale
    parts = kernel_pca(training, test, **options)
    for part, bags in zip(parts, (training, test), strict=True):
        expected = textbook_components(training, bags, num_components, scale)
        assert_same_up_to_sign(part.instances, expected, atol=1e-12)


def test_components_are_centred_and_uncorrelated_and_their_variance_falls(training):
    (found,) = kernel_pca(training, num_components=10)
    covariance = np.cov(found.instances.T, bias=True)
    variance = np.diag(covariance)
    np.testing.assert_allclose(found.instances.mean(axis=0), 0, atol=1e-13)
    np.testing.assert_allclose(covariance, np.diag(variance), atol=1e-13)
    assert (np.diff(variance) < 0).all()


def test_nearly_linear_kernels_give_principal_components(training, test):
    # k = 1 − ‖x − x'‖²/(2ℓ²) + O(ℓ⁻⁴): after centring, the linear kernel over ℓ².
    length_scale = 1e4
    options = {"num_components": 6, "length_scale": length_scale}
    rows = training.instances - training.instances.mean(axis=0)
    axes = np.linalg.svd(rows)[2]
    # Bound on the next term, with the largest distance for all.
    tolerance = np.abs(rows).max() * (cdist(rows, rows).max() / length_scale) ** 2
    for part, bags in zip(kernel_pca(training, test, **options), (training, test), strict=True):
        expected = (bags.instances - training.instances.mean(axis=0)) @ axes.T
        assert_same_up_to_sign(part.instances * length_scale, expected, rtol=0, atol=tolerance)


# --------------------------------------------------------------------- which bags matter


def test_other_bags_have_no_part_in_finding_the_components(training, test):
    (alone,) = kernel_pca(training, num_components=4)
    first, with_far, far = kernel_pca(training, test, make_bags(5, seed=2), num_components=4)
    np.testing.assert_array_equal(first.instances, alone.instances)
    np.testing.assert_array_equal(
        with_far.instances, kernel_pca(training, test, num_components=4)[1].instances
    )
    assert far.num_bags == 5


def test_an_instance_has_the_same_components_wherever_it_stands(training):
    part = training.select([3, 0, 3])
    _, projected = kernel_pca(training, part, num_components=4)
    whole = kernel_pca(training, num_components=4)[0].select([3, 0, 3])
    np.testing.assert_allclose(projected.instances, whole.instances, atol=1e-13)


def test_signs_do_not_depend_on_runs_or_order(training):
    (once,), (again,) = (kernel_pca(training, num_components=10) for _ in range(2))
    np.testing.assert_array_equal(once.instances, again.instances)
    backwards = np.arange(training.num_bags)[::-1]
    (turned,) = kernel_pca(training.select(backwards), num_components=10)
    np.testing.assert_allclose(turned.instances, once.select(backwards).instances, atol=1e-12)


def test_bags_keep_all_but_their_features(training, test):
    for found, bags in zip(
        kernel_pca(training, test, num_components=2), (training, test), strict=True
    ):
        assert found.instances.shape == (bags.num_instances, 2)
        assert found.instances.dtype == np.float64
        assert not found.instances.flags.writeable
        for field in ("bag_index", "labels", "instance_labels", "targets"):
            np.testing.assert_array_equal(getattr(found, field), getattr(bags, field))
        assert found.names == bags.names


def test_as_many_components_as_different_instances_allow():
    bags = Bags.from_list([[[0.0], [1.0], [0.0]], [[3.0]]], [0, 1])
    (found,) = kernel_pca(bags, num_components=2, length_scale=1.0)
    assert (found.instances.std(axis=0) > 0.1).all()
    np.testing.assert_allclose(found.instances[0], found.instances[2], atol=1e-14)


# --------------------------------------------------------------------- what it refuses

BAD_INPUT = {
    "no component": ({"num_components": 0}, "num_components is 0; expected 1 to "),
    "as many components as instances": (
        {"num_components": 4},
        "num_components is 4; expected 1 to 3, one less than the 4 training instances",
    ),
    "more components than different instances": (
        {"num_components": 3, "length_scale": 1.0},
        "num_components is 3, but the training instances vary along 2 only, with length_scale=1",
    ),
    "all instances alike to the kernel": (
        {"num_components": 1, "length_scale": 1e12},
        "num_components is 1, but the training instances vary along 0 only, with length_scale=1e",
    ),
    "no length scale": (
        {"num_components": 1, "length_scale": 0.0},
        "length_scale is 0.0; expected a positive number",
    ),
    "a length scale that is no number": (
        {"num_components": 1, "length_scale": float("nan")},
        "length_scale is nan; expected a positive number",
    ),
    "an infinite length scale": (
        {"num_components": 1, "length_scale": float("inf")},
        "length_scale is inf; expected a positive number",
    ),
}


@pytest.mark.parametrize("mistake", BAD_INPUT)
def test_bad_input_is_named(mistake):
    options, message = BAD_INPUT[mistake]
    bags = Bags.from_list([[[0.0], [1.0], [0.0]], [[3.0]]], [0, 1])
    with pytest.raises(ValueError, match=message):
        kernel_pca(bags, **options)


def test_bags_of_other_features_are_named(training, test):
    other = make_bags(3, num_features=5)
    message = r"others\[1\] has 5 features, the training bags 6; expected the same"
    with pytest.raises(ValueError, match=message):
        kernel_pca(training, test, other, num_components=2)


def test_a_length_scale_that_reaches_no_neighbour_is_refused(training):
    """The kernel matrix would be nearly the identity, and its components noise."""
    far = Bags.from_arrays(100.0 * training.instances, training.bag_index, training.labels)
    with pytest.raises(ValueError, match=r"length_scale is 2.* from the nearest other.* longer"):
        kernel_pca(far, num_components=4)
    kernel_pca(far, num_components=4, length_scale=200.0)
    kernel_pca(far.standardize(), num_components=4)
