"""The closed-form bound of ψ-VGPMIL and its coordinate ascent."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.sparse_gp import (
    LABEL_UPDATES,
    InducingFactor,
    InstanceForm,
    InstanceRows,
    largest_of_others,
)
from milzoo.inference.runtime.densities import log_likelihood
from milzoo.models import RBF, VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture, ScaleMixture
from milzoo.models.numerics.products import inverse_transposed
from scipy.special import expit, logsumexp

SCALE_MIXTURES = [PolyaGammaScaleMixture(), GammaScaleMixture(1.0, 2.5)]
scale_mixture_names = pytest.mark.parametrize(
    "scale_mixture", SCALE_MIXTURES, ids=["sech", "gamma"]
)
every_label_update = pytest.mark.parametrize("label_update", LABEL_UPDATES)


# ------------------------------------------------------------------ against other code


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@scale_mixture_names
@every_label_update
def test_bound_equals_trace_elbo_of_the_guide(
    small_problem, scale_mixture, label_update, trace_elbo_draws
):
    # Six looks at 4.5 standard errors: a false alarm in 4e-5 of all runs.
    model, bags = small_problem
    model = replace(model, scale_mixture=scale_mixture)
    posterior = coordinate_ascent(model, bags, seed=0, label_update=label_update, max_steps=8)
    draws = trace_elbo_draws(posterior, bags)
    error = draws.mean() - posterior.elbo[-1]
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size)


@pytest.mark.in_ci
def test_steps_equal_the_papers_equations_in_plain_numpy(small_problem, closed_form_start):
    model, bags = small_problem
    with jax.enable_x64(True):
        begun = closed_form_start(model, bags, label_update="mean_field", key=jax.random.key(1))
        start = expit(np.asarray(begun.local)[: bags.num_instances])
        end = begun.after(5)
        cholesky = np.asarray(model.conditional(bags).cholesky)
    mean, covariance, probability = _paper_in_numpy(model, bags, start, steps=5)
    np.testing.assert_allclose(cholesky @ np.asarray(end.q.mean), mean, rtol=1e-8, atol=1e-10)
    whitened = np.linalg.solve(np.asarray(end.q.precision_cholesky), cholesky.T)
    np.testing.assert_allclose(whitened.T @ whitened, covariance, rtol=1e-7, atol=1e-9)
    found = expit(np.asarray(end.local)[: bags.num_instances])
    np.testing.assert_allclose(found, probability, rtol=1e-8)


def _paper_in_numpy(model, bags, probability, steps):
    """Equations 25–28 with K⁻¹ as printed, μ0 added; labels one instance after another."""
    points, jitter = model.inducing_points, model.jitter * model.kernel.variance
    covariance_zz = _rbf(model, points, points) + jitter * np.eye(len(points))
    covariance_xz = _rbf(model, bags.instances, points)
    precision_zz = np.linalg.inv(covariance_zz)
    weights = covariance_xz @ precision_zz  # A
    residual = model.kernel.variance - np.sum(weights * covariance_xz, axis=1)  # k̃
    tilt = np.sqrt(model.mean**2 + np.sum((weights @ covariance_zz) * weights, axis=1) + residual)
    probability = probability.copy()
    for _ in range(steps):
        theta = np.tanh(tilt / 2) / (2 * tilt)
        covariance = np.linalg.inv(precision_zz + weights.T @ (theta[:, None] * weights))  # S
        mean = covariance @ weights.T @ (probability - 0.5 - theta * model.mean)  # m
        latent = model.mean + weights @ mean  # μ
        variance = np.sum((weights @ covariance) * weights, axis=1)
        tilt = np.sqrt(latent**2 + variance + residual)  # c
        for n, bag in enumerate(bags.bag_index):
            others = (bags.bag_index == bag) & (np.arange(len(tilt)) != n)
            linear_term = (2 * bags.labels[bag] - 1) * np.log(model.sharpness)
            probability[n] = expit(latent[n] + linear_term * np.prod(1 - probability[others]))
    return mean, covariance, probability


def _rbf(model, left, right):
    distance = ((left[:, None] - right[None]) ** 2).sum(axis=-1)
    return model.kernel.variance * np.exp(-0.5 * distance / model.kernel.length_scale**2)


def test_only_the_plugged_in_maximum_may_lower_its_bound(small_problem):
    allowed = {
        update: closed_form(small_problem[0], Options(update)).allowed_fall
        for update in LABEL_UPDATES
    }
    assert allowed.pop("plug_in_max") == np.inf
    assert all(0 < fall < 1e-6 for fall in allowed.values())


def test_largest_of_others_equals_a_double_loop():
    random = np.random.default_rng(0)
    bag_index = np.repeat(np.arange(6), [1, 2, 5, 3, 1, 4])
    probability = random.choice([0.1, 0.5, 0.9], size=bag_index.size)  # ties on purpose
    found = largest_of_others(jnp.asarray(probability), jnp.asarray(bag_index), 6)
    expected = [
        max((probability[j] for j in np.flatnonzero(bag_index == b) if j != n), default=0.0)
        for n, b in enumerate(bag_index)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# ------------------------------------------------------------------ as mathematics


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@scale_mixture_names
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_bound_is_stationary_at_the_fixed_point(
    small_problem, closed_form_start, gradient_of_the_bound, scale_mixture, label_update
):
    """Tilts and exact labels, which follow from q(u), are at their optimum on the way."""
    model, bags = small_problem
    model = replace(model, scale_mixture=scale_mixture)
    with jax.enable_x64(True):
        end = closed_form_start(model, bags, label_update=label_update).after(3000)
        gradients = gradient_of_the_bound(end)
    assert len(gradients) == (3 if label_update == "mean_field" else 2)
    for gradient in gradients:
        assert np.abs(gradient).max() < 1e-7


def test_gradient_of_the_bound_sees_other_points(
    small_problem, closed_form_start, gradient_of_the_bound
):
    model, bags = small_problem
    with jax.enable_x64(True):
        begun = closed_form_start(model, bags, label_update="mean_field")
        gradients = gradient_of_the_bound(begun)
    for gradient in gradients:
        assert np.abs(gradient).max() > 0.01


SHAPES = [[1] * 6, [40], [1, 2, 5, 3], [7] * 5, [2, 40, 1, 9]]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
@pytest.mark.parametrize(
    "scale_mixture", [PolyaGammaScaleMixture(), GammaScaleMixture(1.0, 2.5)], ids=["sech", "gamma"]
)
def test_no_step_lowers_the_bound(sizes, label_update, scale_mixture, bounds_of_steps):
    # 5 shapes × 2 updates × 2 ψ × 50 problems: labels at random, a fifth all 1, a fifth all 0.
    random = np.random.default_rng(len(sizes))
    forms, rows = random_problems(random, sizes, label_update, scale_mixture, num_problems=50)
    traces = bounds_of_steps(forms, rows, num_steps=25)
    assert np.isfinite(traces).all()
    # Rounding: the bound is a difference of sums that are up to 1e4 times as large as itself.
    allowed = 1e-10 * np.maximum(1.0, np.abs(traces[:, :-1]))
    assert (np.diff(traces, axis=1) > -allowed).all()


def random_problems(random, sizes, label_update, scale_mixture, num_problems):
    """Forms and what they would have prepared, by problem on the first axis."""
    bag_index = np.repeat(np.arange(len(sizes)), sizes)
    shape = (num_problems, bag_index.size)
    labels = random.integers(0, 2, size=(num_problems, len(sizes)))
    labels[: num_problems // 5] = 1
    labels[-num_problems // 5 :] = 0
    scale = random.choice([0.1, 1.0, 5.0], size=(num_problems, 1, 1))
    rows = InstanceRows(
        rows=scale * random.normal(size=(*shape, 3)),
        residual_variance=random.gamma(0.5, 2.0, size=shape),
        bag_index=np.broadcast_to(bag_index, shape),
        bag_label=labels,
        bag_weight=np.ones(labels.shape),
    )
    models = [
        VGPMIL(
            RBF(1.0, 1.0),
            np.zeros((3, 1)),
            mean=mean,
            sharpness=sharpness,
            scale_mixture=scale_mixture,
        )
        for mean, sharpness in zip(
            random.normal(scale=3.0, size=num_problems),
            random.choice([1.0, 3.0, 100.0, 1e12], size=num_problems),
            strict=True,
        )
    ]
    options = {"keeps_projection": True, "longest_bag": max(sizes)}
    forms = [InstanceForm(model, "float64", label_update, **options) for model in models]
    with jax.enable_x64(True):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *forms), rows


@pytest.mark.in_ci
def test_exact_labels_never_loosen_the_bound():
    sizes, scale_mixture = [1, 2, 5, 3, 8], PolyaGammaScaleMixture()
    random = np.random.default_rng(4)
    exact, rows = random_problems(random, sizes, "exact", scale_mixture, num_problems=40)
    independent = replace(exact, label_update="mean_field")
    logits = random.logistic(size=rows.bag_index.shape)
    mean = random.normal(size=(40, 3))
    root = np.eye(3) + np.tril(random.normal(size=(40, 3, 3))) ** 2

    def bounds(given):
        exact, independent, rows, logits, mean, root = given
        q, found = InducingFactor(mean, root, inverse_transposed(root)), []
        for _ in range(3):  # sweeps at this q(u): mean field at its best
            statistics, logits = independent.e_step(rows, q, logits)
            found.append(independent.elbo(q, statistics))
        return exact.elbo(q, exact.e_step(rows, q, None)[0]), jnp.stack(found)

    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (exact, independent, rows, logits, mean, root))
        best, found = jax.jit(lambda given: jax.lax.map(bounds, given))(given)
    assert (np.asarray(found) <= np.asarray(best)[:, None] + 1e-9).all()
    assert (np.asarray(found) < np.asarray(best)[:, None] - 1e-3).any()


@pytest.mark.slow
@pytest.mark.parametrize("scale_mixture", [PolyaGammaScaleMixture()], ids=["sech"])
@every_label_update
def test_bound_lies_below_the_log_evidence_by_quadrature(
    one_inducing_point, scale_mixture, label_update
):
    model, bags = one_inducing_point
    posterior = coordinate_ascent(model, bags, seed=0, label_update=label_update)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    scale = np.sqrt(model.kernel.variance * (1 + model.jitter))
    likelihood = log_likelihood(
        model, "marginal", {"inducing_value": scale * nodes[:, None]}, bags
    ).sum(axis=1)
    evidence = logsumexp(likelihood, b=weights / weights.sum())
    assert posterior.elbo[-1] < evidence


@pytest.mark.slow
def test_bags_of_one_with_firm_labels_are_plain_classification():
    # H → ∞ pins y to T: Jaakkola's sparse GP classification, written down on its own here.
    random = np.random.default_rng(0)
    instances, labels = random.normal(size=(25, 2)), random.integers(0, 2, 25)
    bags = Bags.from_arrays(instances, np.arange(25), labels)
    model = VGPMIL.as_published(bags, num_inducing=5, variance=2.0, sharpness=1e14)
    posterior = coordinate_ascent(model, bags, seed=0, tolerance=1e-13)
    mean = _jaakkola_classification(model, bags)
    np.testing.assert_allclose(posterior.approximation.mean, mean, rtol=1e-5, atol=1e-6)


def _jaakkola_classification(model, bags):
    points = model.inducing_points
    covariance_zz = _rbf(model, points, points) * 1.0
    covariance_zz += model.jitter * model.kernel.variance * np.eye(len(points))
    weights = np.linalg.solve(covariance_zz, _rbf(model, points, bags.instances)).T
    residual = model.kernel.variance - np.sum(weights * _rbf(model, bags.instances, points), axis=1)
    mean, covariance = np.zeros(len(points)), covariance_zz
    for _ in range(400):
        xi = np.sqrt((weights @ mean) ** 2 + np.sum((weights @ covariance) * weights, 1) + residual)
        lam = np.tanh(xi / 2) / (4 * xi)
        covariance = np.linalg.inv(
            np.linalg.inv(covariance_zz) + 2 * weights.T @ (lam[:, None] * weights)
        )
        mean = covariance @ weights.T @ (bags.labels - 0.5)
    return mean


def test_permuting_bags_and_instances_changes_nothing(small_problem):
    model, bags = small_problem
    random = np.random.default_rng(1)
    order = np.concatenate(
        [random.permutation(np.flatnonzero(bags.bag_index == b)) for b in (3, 0, 11, 7, 1)]
    )
    chosen = bags.select(np.array([0, 1, 3, 7, 11]))
    moved = Bags.from_arrays(
        bags.instances[order], bags.bag_index[order], bags.labels[[3, 0, 11, 7, 1]]
    )
    first, second = (coordinate_ascent(model, b, seed=0) for b in (chosen, moved))
    np.testing.assert_allclose(first.elbo, second.elbo, rtol=1e-10)
    np.testing.assert_allclose(first.approximation.mean, second.approximation.mean, atol=1e-10)


# ------------------------------------------------------------------ hyper-parameters of other ψ


@pytest.fixture(scope="module")
def learned_gamma():
    """Forty bags of noise, the positive ones with an instance far away: v stays away from 0."""
    random = np.random.default_rng(0)
    tables = [random.normal(size=(1 + b % 4, 2)) for b in range(40)]
    for table in tables[1::2]:
        table[0, 0] += 4.0
    bags = Bags.from_list(tables, np.arange(40) % 2)
    model = VGPMIL.for_bags(bags, 6, 2.0, 1.5, mean=0.0, scale_mixture=GammaScaleMixture(1.0, 2.5))
    settings = {"learn_hyperparameters": True, "tolerance": 1e-10, "max_steps": 300}
    return coordinate_ascent(model, bags, seed=0, **settings), bags


def normalised_bound(model, bags):
    """The bound at fixed hyper-parameters, less log Z by the draws that the ascent has."""
    fixed = coordinate_ascent(model, bags, seed=0, tolerance=1e-12)
    start_key, _ = jax.random.split(jax.random.key(0))
    return fixed.elbo[-1] - model.log_normaliser(bags, seed=start_key, num_draws=100)[0]


@pytest.mark.slow
def test_learning_ascends_the_bound_less_log_z(learned_gamma):
    posterior, bags = learned_gamma
    assert np.all(np.diff(posterior.elbo) > -1e-9)
    assert posterior.model.kernel.variance > 0.5
    expected = normalised_bound(posterior.model, bags)
    np.testing.assert_allclose(posterior.elbo[-1], expected, atol=1e-5)


@pytest.mark.slow
def test_learned_values_that_rest_on_few_draws_are_doubted(learned_gamma):
    posterior, bags = learned_gamma
    start_key, _ = jax.random.split(jax.random.key(0))
    _, error = posterior.model.log_normaliser(bags, seed=start_key, num_draws=100)
    # Of weights with mean 1: Var w = S error², and (Σ w)²/Σ w² = S/(1 + Var w).
    effective = 100 / (1 + 99 * error**2)
    assert effective < 10
    assert f"rests on {effective:.1f} of 100 draws" in posterior.status.sentence


@pytest.mark.slow
def test_a_sure_estimate_of_the_constant_is_not_doubted(learned_gamma):
    posterior, bags = learned_gamma
    with jax.enable_x64(True):
        model = posterior.model.with_hyperparameters({"variance": 0.01})
        form = closed_form(model, Options()).in_memory(bags).with_normaliser(jax.random.key(0))
        assert form.doubt(form.chunk(bags)) == ""


@pytest.mark.in_ci
def test_learned_values_of_a_gamma_mixture_are_an_optimum(learned_gamma):
    """The variance, the length scale and the mean, each a twentieth up and down."""
    posterior, bags = learned_gamma
    model = posterior.model
    for name, value in model.hyperparameters.items():
        for factor in (0.95, 1.05):
            moved = model.with_hyperparameters({name: float(value) * factor})
            assert normalised_bound(moved, bags) < posterior.elbo[-1] + 1e-6


# ------------------------------------------------------------------ as an engine


@pytest.mark.slow
def test_learning_hyperparameters_raises_the_bound_and_never_lowers_it(small_problem):
    model, bags = small_problem
    fixed = coordinate_ascent(model, bags, seed=0)
    learned = coordinate_ascent(model, bags, seed=0, learn_hyperparameters=True, max_steps=60)
    assert np.diff(learned.elbo).min() > -1e-9
    assert learned.elbo[-1] > fixed.elbo[-1]
    # The learned values are in the model: at them the factors alone can only rise.
    again = coordinate_ascent(learned.model, bags, seed=0)
    assert again.elbo[-1] > learned.elbo[-1] - 1e-6


def test_status_tells_how_the_ascent_ended(small_problem):
    model, bags = small_problem
    done = coordinate_ascent(model, bags, seed=0)
    assert done.status.kind == "converged"
    assert f"step {len(done.elbo)}" in done.status.sentence
    cut = coordinate_ascent(model, bags, seed=0, max_steps=2)
    assert cut.status.kind == "max_steps"
    assert re.search(r"moved by \+\S+ at the last step, 2", cut.status.sentence)


@pytest.mark.slow
def test_custom_mixture_runs_without_its_mixing_density(small_problem):
    model, bags = small_problem
    secant = ScaleMixture.from_log_density(lambda f: -jnp.logaddexp(f / 2, -f / 2))
    custom = coordinate_ascent(replace(model, scale_mixture=secant), bags, seed=0)
    builtin = coordinate_ascent(model, bags, seed=0)
    np.testing.assert_allclose(custom.elbo, builtin.elbo, rtol=1e-8)
    with pytest.raises(NotImplementedError, match="mixing distribution"):
        custom.model.augmented()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_update": "exakt"}, "label_update is 'exakt'.*exact, mean_field, plug_in_max"),
        ({"max_steps": 0}, "max_steps is 0"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_named(small_problem, arguments, message):
    model, bags = small_problem
    with pytest.raises(ValueError, match=message):
        coordinate_ascent(model, bags, seed=0, **arguments)


@pytest.mark.usefixtures("without_type_checks")
def test_priors_and_unlabelled_bags_are_refused(small_problem):
    import numpyro.distributions as dist

    model, bags = small_problem
    with pytest.raises(ValueError, match="mean of the model have priors"):
        coordinate_ascent(replace(model, mean=dist.Normal(0.0, 1.0)), bags, seed=0)
    with pytest.raises(ValueError, match="bags have no labels"):
        coordinate_ascent(model, replace(bags, labels=None), seed=0)
    with pytest.raises(TypeError, match="seed is None"):
        coordinate_ascent(model, bags, seed=None)
