"""The closed-form bound of DPMIL and its coordinate ascent, hard and soft."""

import re
import warnings
from dataclasses import replace
from functools import partial
from itertools import cycle, permutations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.datasets.padding import padded
from milzoo.inference import Posterior, coordinate_ascent
from milzoo.inference.closed_form import Options, closed_form, dpmil
from milzoo.inference.closed_form.dpmil import DPMILForm, MixtureState, MixtureStatistics
from milzoo.inference.closed_form.drivers import Limits, ascend_in_memory
from milzoo.models import DPMIL, VWSGP
from milzoo.models.model import random_key, split_key
from milzoo.models.parts.normal_wishart import Statistics
from milzoo.models.parts.witnesses import LabelRule
from scipy.special import betaln, digamma, expit, logsumexp, multigammaln
from scipy.stats import norm
from sklearn.mixture import BayesianGaussianMixture

LABEL_UPDATES = dpmil.LABEL_UPDATES
every_label_update = pytest.mark.parametrize("label_update", LABEL_UPDATES)
COVARIANCES = ["full", "diagonal"]
every_covariance = pytest.mark.parametrize("covariance", COVARIANCES)


def bags_of_clusters(sizes, num_features, seed, *, separation=2.5) -> Bags:
    """Every second bag positive, with one witness or more from a cluster of its own."""
    random = np.random.default_rng(seed)
    instances, labels, known = [], [], []
    for b, size in enumerate(sizes):
        positive = np.zeros(size, int)
        if b % 2 == 1:
            positive[: random.integers(1, size + 1)] = 1
        centre = separation * np.where(positive == 1, 1.0, random.integers(0, 2, size) * -1.0)
        instances.append(random.normal(size=(size, num_features)) + centre[:, None])
        labels.append(b % 2)
        known.append(positive)
    return Bags.from_list(instances, labels, known)


@pytest.fixture(scope="module")
def bags() -> Bags:
    """Twelve bags of one to four instances of two features."""
    return bags_of_clusters([1, 2, 3, 4] * 3, 2, seed=3)


VARIANTS = {
    "as the paper": {},
    "diagonal": {"covariance": "diagonal"},
    "labels known": {"supervision": "instances"},
    "one component, no witness needed": {"max_components": 1, "needs_witness": False},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "label_update"),
    [*((variant, "soft") for variant in VARIANTS), ("as the paper", "hard")],
)
def test_bound_equals_trace_elbo_of_the_guide(bags, variant, label_update, trace_elbo_draws):
    # Five looks at 4.5 standard errors: a false alarm in 4e-5 of all runs.
    model = DPMIL.for_bags(bags, **({"max_components": 3} | VARIANTS[variant]))
    posterior = coordinate_ascent(
        model, bags, seed=0, label_update=label_update, max_steps=4, num_starts=1, num_draws=10
    )
    draws = trace_elbo_draws(posterior, bags)
    error = draws.mean() - posterior.elbo[-1]
    assert abs(error) < 4.5 * draws.std(ddof=1) / np.sqrt(draws.size)


@pytest.mark.slow
@every_label_update
def test_moments_made_anew_give_the_kept_ones_ascent(bags, label_update, monkeypatch):
    options = {"label_update": label_update, "max_steps": 5, "num_starts": 2, "num_draws": 10}
    model = DPMIL.for_bags(bags, 3)
    kept = coordinate_ascent(model, bags, seed=0, **options)
    monkeypatch.setattr(dpmil, "_MOMENTS_KEPT", 0)
    made = coordinate_ascent(model, bags, seed=0, **options)
    np.testing.assert_allclose(made.elbo, kept.elbo, rtol=1e-12)
    np.testing.assert_allclose(made.approximation.mean, kept.approximation.mean, rtol=1e-9)


@pytest.mark.slow
def test_kept_factors_are_those_of_the_best_start(bags):
    """Its trace and its means, which are those of all starts in the same order."""
    model = DPMIL.for_bags(bags, 3)
    found = coordinate_ascent(model, bags, seed=2, max_steps=5, num_starts=3, num_draws=10)
    ends = found.approximation.start_elbo
    best = int(np.argmax(ends))
    assert best > 0  # else the first would do
    assert found.elbo[-1] == ends[best] > ends.min()
    with jax.enable_x64(True):
        start_key, _ = split_key(random_key(2))
        every = ascend_in_memory(DPMILForm(model, "soft", 3), bags, Limits(5, 1e-8), key=start_key)
    strength = np.asarray(every.q.gaussians.strength)
    np.testing.assert_array_equal(found.approximation.strength, strength[best])


def test_a_form_of_starts_is_outside_the_program(bags):
    with pytest.raises(NotImplementedError, match="from many starts, cannot be a part of another"):
        closed_form(DPMIL.for_bags(bags, 3), Options(is_traced=True))


def test_whole_chunks_have_the_statistics_of_split_ones(bags):
    """Of a stream no instances are set apart as certain negatives."""
    form = DPMILForm(DPMIL.for_bags(bags, 3), "soft", num_starts=2)

    @jax.jit
    def first_statistics(form, chunk, start):
        return form.initial(form.prepare(chunk), start)[0]

    with jax.enable_x64(True):
        start = form.start(lambda rows, at_most: rows(bags), jax.random.key(0))
        split = first_statistics(form, form.chunk(bags), start)
        whole = first_statistics(form, padded(bags), start)
    assert len(form.chunk(bags).negatives)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), whole, split)


# ------------------------------------------------------------------ labels given: other code


@pytest.fixture(scope="module")
def labelled() -> tuple[DPMIL, Bags]:
    """Forty bags of five, all instances labelled; five components for each class."""
    bags = bags_of_clusters([5] * 40, 2, seed=0)
    return DPMIL.for_bags(bags, 5, supervision="instances"), bags


def of_scikit_learn(model: DPMIL, instances: np.ndarray) -> BayesianGaussianMixture:
    """The same mixture of one class; no term is added to its covariances."""
    return BayesianGaussianMixture(
        n_components=model.max_components,
        weight_concentration_prior_type="dirichlet_process",
        weight_concentration_prior=model.concentration,
        mean_prior=model.center,
        mean_precision_prior=model.mean_strength,
        covariance_prior=np.linalg.inv(model.scale),
        degrees_of_freedom_prior=model.degrees_of_freedom,
        reg_covar=0.0,
        random_state=0,
        max_iter=2000,
        tol=1e-9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("klass", [0, 1])
def test_one_round_equals_scikit_learns_with_labels_given(labelled, klass):
    """From the same responsibilities, the same q(μ, Λ), sticks and E log N.

    scikit-learn adds 10 eps to each N_k, which 1e-9 allows for. It draws the last stick too, where
    here v_K = 1 makes weights sum to one: E log π is the same for all components but the last.
    """
    model, bags = labelled
    instances = bags.instances[bags.instance_labels == klass]
    responsibilities = np.random.default_rng(1).dirichlet(np.ones(5), len(instances))
    # As the sticks want them: a round would rename them.
    count = responsibilities.sum(axis=0)
    order = max(
        map(list, permutations(range(5))),
        key=lambda one: log_evidence_of_sticks(count[None, one], model.concentration)[0],
    )
    responsibilities = responsibilities[:, order]
    form = DPMILForm(model, "soft", 1)
    with jax.enable_x64(True):
        whitened = model.whitened_values(jnp.asarray(instances))
        one = form._statistics(
            dpmil.Instances(whitened, None), jnp.asarray(responsibilities)[:, None, None]
        )
        sufficient = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf], axis=1), one)
        nothing = jnp.zeros(())
        state = form.m_step(MixtureStatistics(sufficient, jnp.zeros(1), nothing))
        ends = np.zeros(1)
        only = jax.tree.map(lambda leaf: np.asarray(leaf)[0], state)
        q = form.approximation(only, None, bags, ends)
        log_components = np.asarray(q.expected_log_components(bags))[klass]
    log_components = log_components[:, bags.instance_labels == klass].T

    theirs = of_scikit_learn(model, instances)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps do not converge
        theirs.set_params(max_iter=1).fit(instances)  # checks and stores the priors
    theirs._m_step(instances, np.log(responsibilities))
    np.testing.assert_allclose(q.mean[klass], theirs.means_, rtol=1e-9)
    np.testing.assert_allclose(q.strength[klass], theirs.mean_precision_, rtol=1e-9)
    np.testing.assert_allclose(q.degrees_of_freedom[klass], theirs.degrees_of_freedom_, rtol=1e-9)
    inverse_scale = theirs.covariances_ * theirs.degrees_of_freedom_[:, None, None]
    found = q.scale_root[klass] @ np.swapaxes(q.scale_root[klass], 1, 2)
    np.testing.assert_allclose(found @ inverse_scale, np.tile(np.eye(2), (5, 1, 1)), atol=1e-8)
    concentration1, concentration0 = (stick[:-1] for stick in theirs.weight_concentration_)
    np.testing.assert_allclose(q.concentration1[klass], concentration1, rtol=1e-9)
    np.testing.assert_allclose(q.concentration0[klass], concentration0, rtol=1e-9)
    log_weights, log_normal = theirs._estimate_log_weights(), theirs._estimate_log_prob(instances)
    expected = log_normal[:, :-1] + log_weights[:-1]
    np.testing.assert_allclose(log_components[:, :-1], expected, rtol=1e-8)
    last_stick = digamma(theirs.weight_concentration_[0][-1]) - digamma(
        theirs.weight_concentration_[0][-1] + theirs.weight_concentration_[1][-1]
    )
    last = log_normal[:, -1] + log_weights[-1] - last_stick
    np.testing.assert_allclose(log_components[:, -1], last, rtol=1e-8)


@pytest.mark.slow
def test_converged_clusters_are_scikit_learns_with_labels_given(labelled):
    """Of the negative class, which has two clusters 3.5 sd apart, both runs to the end.

    The two models differ by the last stick alone, and the last components are nearly empty in both:
    weights of the large clusters agree to 1 % and their means to a hundredth of an sd.
    """
    model, bags = labelled
    posterior = coordinate_ascent(model, bags, seed=0, num_starts=8, tolerance=1e-12, num_draws=10)
    q, instances = posterior.approximation, bags.instances[bags.instance_labels == 0]
    theirs = of_scikit_learn(model, instances).set_params(n_init=8).fit(instances)
    ours = np.argsort(q.expected_weight[0])[:-3:-1]
    their_order = np.argsort(theirs.weights_)[:-3:-1]
    np.testing.assert_allclose(
        q.expected_weight[0][ours], theirs.weights_[their_order], rtol=0.01, atol=0.005
    )
    np.testing.assert_allclose(q.mean[0][ours], theirs.means_[their_order], atol=0.01)


@pytest.mark.slow
def test_quadratic_discriminant_analysis_has_the_exact_posterior_and_evidence(labelled):
    """One Gaussian for each class, all labels known: q is conjugate, and the bound is log p(X, T).

    The evidence is that of the normal-Wishart prior in the units of the features (Bishop 2006, by
    Bayes' theorem), times the chance of the labels among all that the bags allow.
    """
    _, bags = labelled
    model = DPMIL.qda(bags)
    posterior = coordinate_ascent(model, bags, seed=0, num_starts=1, num_draws=10)
    expected = np.log([model.positive_fraction, 1 - model.positive_fraction]) @ [20, 20]
    for klass in (0, 1):
        expected += log_evidence_of_one_gaussian(
            model, bags.instances[bags.instance_labels == klass]
        )
    np.testing.assert_allclose(posterior.elbo[-1], expected, rtol=1e-10)


def log_evidence_of_one_gaussian(model: DPMIL, instances: np.ndarray) -> float:
    """log p(X) of N(μ, Λ⁻¹) under the model's normal-Wishart prior, by explicit inverses."""
    count, num_features = instances.shape
    prior_inverse = np.linalg.inv(model.scale)
    beta_0, nu_0 = model.mean_strength, model.degrees_of_freedom
    inverse_scale = prior_inverse
    if count:
        mean = instances.mean(axis=0)
        deviation = instances - mean
        offset = mean - model.center
        inverse_scale = prior_inverse + deviation.T @ deviation
        inverse_scale = inverse_scale + beta_0 * count / (beta_0 + count) * np.outer(offset, offset)
    nu, beta = nu_0 + count, beta_0 + count
    half = 0.5 * num_features
    return (
        -count * half * np.log(np.pi)
        + half * np.log(beta_0 / beta)
        + multigammaln(nu / 2, num_features)
        - multigammaln(nu_0 / 2, num_features)
        + nu_0 / 2 * np.linalg.slogdet(prior_inverse)[1]
        - nu / 2 * np.linalg.slogdet(inverse_scale)[1]
    )


@pytest.mark.slow
def test_mimm_finds_the_fixed_point_of_expectation_maximisation():
    """Foulds and Smyth's own algorithm, in plain NumPy, on 4,000 instances.

    Theirs is maximum likelihood with one Gaussian each and ρ_n = p₊/(p₊ + p₋) for the instances of
    positive bags; the prior of ours counts for three of thousands of instances.
    """
    bags = bags_of_clusters([10] * 400, 2, seed=5, separation=1.5)
    model = DPMIL.mimm(bags)
    posterior = coordinate_ascent(model, bags, seed=0, num_starts=1, num_draws=10)
    x, positive_bag = bags.instances, bags.labels[bags.bag_index] == 1
    weight = positive_bag.astype(float)
    for _ in range(500):
        moments = []
        for responsibility in (1 - weight, weight):
            total = responsibility.sum()
            mean = responsibility @ x / total
            moments.append((mean, np.sqrt(responsibility @ (x - mean) ** 2 / total)))
        log_density = [norm.logpdf(x, *moment).sum(axis=1) for moment in moments]
        weight = np.where(positive_bag, expit(log_density[1] - log_density[0]), 0.0)
    found = posterior.predict(bags).instance_probability
    q = posterior.approximation
    for klass, (mean, _) in enumerate(moments):
        np.testing.assert_allclose(q.mean[klass, 0], mean, atol=0.01)
    np.testing.assert_allclose(found[positive_bag], weight[positive_bag], atol=0.01)


# ------------------------------------------------------------------ as mathematics


def enumerated_log_evidence(model: DPMIL, bags: Bags) -> float:
    """log p(X, T) by the sum over all labels and clusters of closed-form evidences."""
    instances, index = bags.instances, bags.bag_index
    terms = []
    allowed = 0
    for label in product([0, 1], repeat=bags.num_instances):
        positive = np.bincount(index, label, bags.num_bags) > 0
        if not (positive == bags.labels).all():
            continue
        allowed += 1
        for cluster in product(range(model.max_components), repeat=bags.num_instances):
            component = np.array(label) * model.max_components + np.array(cluster)
            total = 0.0
            for klass in (0, 1):
                count = np.array(
                    [
                        np.sum(component == klass * model.max_components + k)
                        for k in range(model.max_components)
                    ]
                )
                after = np.cumsum(count[::-1])[::-1][1:]
                total += np.sum(
                    betaln(1 + count[:-1], model.concentration + after)
                    - betaln(1, model.concentration)
                )
            for k in range(2 * model.max_components):
                total += log_evidence_of_one_gaussian(model, instances[component == k])
            terms.append(total)
    labels = np.log(
        np.where(bags.labels == 1, model.positive_fraction, 1 - model.positive_fraction)
    )
    return logsumexp(terms) - np.log(allowed) + labels.sum()


@pytest.mark.slow
@every_label_update
@pytest.mark.parametrize("seed", range(3))
def test_bound_stays_below_the_log_evidence(label_update, seed):
    """Two components a class and five instances: 496 labellings and clusterings, all summed."""
    bags = bags_of_clusters([2, 3], 1, seed=seed)
    model = DPMIL.for_bags(bags, 2)
    posterior = coordinate_ascent(model, bags, seed=0, label_update=label_update, num_draws=10)
    evidence = enumerated_log_evidence(model, bags)
    assert posterior.elbo[-1] < evidence
    # The names of two clusters in each class cost up to log 4 = 1.4, and labels are not much more.
    assert posterior.elbo[-1] > evidence - 3


@pytest.mark.slow
@every_label_update
@every_covariance
def test_bound_is_stationary_at_the_fixed_point(bags, closed_form_start, label_update, covariance):
    """Of q(μ, Λ) and q(v); the labels follow, or are those that were chosen."""
    model = DPMIL.for_bags(bags, 2, covariance=covariance)

    @jax.jit
    def gradient(end):
        def bound(gaussians, sticks):
            q = MixtureState(gaussians, sticks)
            statistics, _ = end.form.e_step(end.prepared, q, end.local)
            return jnp.sum(end.form.elbo(q, statistics))

        return jax.grad(bound, argnums=(0, 1))(*end.q)

    with jax.enable_x64(True):
        end = closed_form_start(model, bags, label_update=label_update, num_starts=1).after(3000)
        gaussians, sticks = gradient(end)
        more = end.q.sticks.concentration1 + 1
        elsewhere = end.q._replace(sticks=end.q.sticks._replace(concentration1=more))
        moved = gradient(end._replace(q=elsewhere))[1]
    flat = [*gaussians[:2], *gaussians[3:], *sticks]
    third = gaussians[2]
    flat.append(np.tril(third) if covariance == "full" else third)
    assert max(np.abs(gradient).max() for gradient in flat) < 1e-6
    assert np.abs(moved.concentration1).max() > 1e-3  # it sees a point that is not


SHAPES = [([1, 2, 5, 3, 1, 1], 3), ([2, 9, 1, 20], 1)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes_and_features", SHAPES, ids=str)
@every_covariance
@every_label_update
def test_no_step_lowers_the_bound(sizes_and_features, covariance, label_update):
    """125 for each of eight kinds, fifteen rounds each; 1e-10 of the bound is rounding.

    The data have outliers, scales from 0.01 to 10 prior sds and repeated rows; the start is random.
    (Of x = 10⁴ prior sds, sums of squares keep no digit beyond 10⁻⁸, and the bound is as rough.)
    At each q(θ) on the way the soft bound is not below the hard one: it sums over the labellings of
    which the hard one takes one.
    """
    sizes, num_features = sizes_and_features
    random = np.random.default_rng(len(sizes) * 10 + num_features)
    design = bags_of_clusters(sizes, num_features, seed=0)
    scale = np.eye(num_features) if covariance == "full" else np.ones(num_features)
    model = DPMIL(np.zeros(num_features), scale, num_features + 1.0, max_components=3)
    form, soft, hard = (DPMILForm(model, update, 1) for update in (label_update, "soft", "hard"))
    # Instances in the order of the chunk: candidates, then certain negatives.
    chunk = form.chunk(replace(design, instances=np.arange(design.num_instances)[:, None] * 1.0))
    parts = [chunk.candidates.instances, chunk.negatives]
    in_candidates, in_negatives = (np.asarray(rows)[:, 0].astype(int) for rows in parts)

    def run(instances, weights):
        given = chunk._replace(
            candidates=replace(chunk.candidates, instances=instances[in_candidates]),
            negatives=instances[in_negatives],
        )
        prepared = form.prepare(given)
        positive = (prepared.rule.known > -jnp.inf)[:, None]
        of_class = jnp.stack([~positive, positive], axis=1)[:, None]  # (C, 1, 2, 1)
        sufficient = form._sufficient(
            prepared,
            of_class * weights[in_candidates][:, None, None],
            weights[in_negatives][:, None, None],
        )
        local = positive.T
        statistics = MixtureStatistics(sufficient, jnp.zeros(1), prepared.log_constant)

        def one(state, _):
            statistics, former = state
            q = form.m_step(statistics)
            of_soft, _ = soft.e_step(prepared, q, None)
            of_hard, chosen = hard.e_step(prepared, q, former)
            bounds = soft.elbo(q, of_soft)[0], hard.elbo(q, of_hard)[0]
            after = of_soft if label_update == "soft" else of_hard
            return (after, chosen), (form.elbo(q, after)[0], *bounds)

        return jax.lax.scan(one, (statistics, local), length=16)[1]

    shape = (125, sum(sizes))
    size = 10.0 ** random.uniform(-2, 1, (*shape, 1))
    instances = size * random.standard_t(4, (*shape, num_features))
    instances[:, -1] = instances[:, 0]
    weights = random.dirichlet(np.ones(3), shape)
    with jax.enable_x64(True):
        all_runs = jax.jit(lambda *problems: jax.lax.map(lambda one: run(*one), problems))
        bounds, of_soft, of_hard = map(np.asarray, all_runs(instances, weights))
    tolerance = 1e-10 * np.maximum(1, np.abs(bounds))
    assert np.isfinite(bounds).all()
    fall = (-np.diff(bounds, axis=1) - tolerance[:, 1:]).max()
    assert fall <= 0, fall
    assert (of_soft >= of_hard - tolerance).all()


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("concentration", [0.5, 2.0, 5.0])
def test_components_are_in_the_best_of_all_orders(concentration):
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        for _ in range(20):
            count = jnp.asarray(random.gamma(0.3, 20.0, (2, 5)))
            total = count[..., None] * jnp.arange(3.0)
            sufficient = Statistics(count, total, 2 * total)
            found = dpmil._in_order(sufficient, jnp.asarray(concentration))
            after = log_evidence_of_sticks(np.asarray(found.occupancy), concentration)
            best = np.max(
                [
                    log_evidence_of_sticks(np.asarray(count)[:, list(order)], concentration)
                    for order in permutations(range(5))
                ],
                axis=0,
            )
            np.testing.assert_allclose(after, best, rtol=1e-12)
            np.testing.assert_allclose(np.sort(found.occupancy), np.sort(count), rtol=1e-12)
            np.testing.assert_allclose(found.moment, 2 * found.total, rtol=1e-12)
            expected = found.occupancy[..., None] * jnp.arange(3.0)
            np.testing.assert_allclose(found.total, expected, rtol=1e-12)


def test_components_keep_their_names_where_no_order_is_better():
    """Many are empty, and empty ones are alike."""
    with jax.enable_x64(True):
        count = jnp.asarray([[9.0, 4.0, 0.0, 0.0], [3.0, 1.0, 1.0, 0.0]])
        named = jnp.broadcast_to(jnp.arange(4.0), (2, 4))[..., None]
        found = dpmil._in_order(Statistics(count, named, named), jnp.asarray(1.0))
        np.testing.assert_array_equal(found.total, named)


def log_evidence_of_sticks(count: np.ndarray, concentration: float) -> np.ndarray:
    after = np.cumsum(count[:, ::-1], axis=1)[:, ::-1][:, 1:]
    by_stick = betaln(1 + count[:, :-1], concentration + after) - betaln(1, concentration)
    return by_stick.sum(axis=1)


@pytest.mark.slow
def test_best_labels_equal_a_loop_over_bags():
    random = np.random.default_rng(0)
    index = np.repeat(np.arange(8), [1, 2, 5, 3, 1, 4, 2, 2])
    for _ in range(200):
        # Ties on purpose, and many bags of which no instance is better off positive.
        odds = random.choice([-3.0, -2.0, -1.0, 1.0], size=len(index), p=[0.3, 0.3, 0.3, 0.1])
        needs = random.uniform(size=8) < 0.7
        was = random.uniform(size=len(index)) < 0.5
        for bag in range(8):
            was[np.flatnonzero(index == bag)[-1]] |= not was[index == bag].any()
        rule = LabelRule(jnp.zeros(len(index)), jnp.asarray(needs), jnp.asarray(index))
        found = np.asarray(dpmil._best_labels(rule, jnp.asarray(odds), jnp.asarray(was)))
        expected = odds > 0
        for bag in np.flatnonzero(needs):
            rows = np.flatnonzero(index == bag)
            if not expected[rows].any():
                former = rows[was[rows]]
                expected[former[np.argmax(odds[former])]] = True
        np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------ what comes out


@pytest.fixture(scope="module")
def fitted(bags) -> Posterior:
    return coordinate_ascent(DPMIL.for_bags(bags, 3), bags, seed=0, num_draws=4000)


@pytest.mark.slow
def test_predictive_is_the_mean_density_over_draws_of_q(fitted, bags):
    """The Student-t mixtures are integrals over q(θ): 4,000 draws come to within their error."""
    model = fitted.model
    stored = fitted.stored_draws()

    def of_one(site):
        return model.mixtures(site).log_density(jnp.asarray(bags.instances))

    with jax.enable_x64(True):
        sites = {name: jnp.asarray(stored[name]) for name in model.latent_sites}
        density = np.exp(np.asarray(jax.jit(partial(jax.lax.map, of_one))(sites)))
    mean, error = density.mean(axis=0), density.std(axis=0) / np.sqrt(len(density))
    negative, positive = fitted.approximation.log_predictive(model, bags)
    probability = expit(positive - negative)
    fraction = mean[1] / mean.sum(axis=0)
    sd = np.hypot(error[1] * (1 - fraction), error[0] * fraction) / mean.sum(axis=0)
    # Thirty instances at 5 standard errors: a false alarm in 2e-5 of all runs.
    assert (np.abs(probability - fraction) < 5 * sd).all()
    assert fitted.predict(bags).instance_probability == pytest.approx(probability, abs=1e-12)


@pytest.mark.slow
def test_best_of_several_starts_is_kept(bags):
    """The status tells how far the others are below."""
    model = DPMIL.for_bags(bags, 3)
    posterior = coordinate_ascent(model, bags, seed=0, num_starts=6, num_draws=10)
    ends = posterior.approximation.start_elbo
    assert ends.shape == (6,)
    assert posterior.elbo[-1] == ends.max() > ends.min()
    assert "the best of 6 starts" in posterior.status.sentence
    assert f"{ends.min():,.2f} and {ends.max():,.2f}" in posterior.status.sentence


@pytest.mark.slow
def test_a_saved_posterior_comes_back_whole(fitted, bags, tmp_path):
    fitted.save(tmp_path / "dpmil.nc")
    loaded = Posterior.load(tmp_path / "dpmil.nc")
    np.testing.assert_array_equal(fitted.predict(bags).bag_draws, loaded.predict(bags).bag_draws)
    np.testing.assert_array_equal(
        fitted.predict(bags).bag_probability, loaded.predict(bags).bag_probability
    )
    assert loaded.model.estimands == fitted.model.estimands


@pytest.mark.slow
def test_density_of_the_draws_is_that_of_the_guide(fitted, bags):
    """log q by the sites of the guide, one after another, at a hundred draws."""
    from numpyro.handlers import seed, substitute, trace

    draws = fitted.draws(100, seed=1)
    with jax.enable_x64(True):
        for s in range(0, 100, 10):
            site = {name: jnp.asarray(value[s]) for name, value in draws.items()}
            guide = substitute(seed(fitted.guide, jax.random.key(0)), site)
            traced = trace(guide).get_trace(bags)
            one = {name: value[s : s + 1] for name, value in draws.items()}
            expected = sum(
                float(jnp.sum(traced[name]["fn"].log_prob(traced[name]["value"])))
                for name in fitted.model.latent_sites
            )
            np.testing.assert_allclose(fitted.log_density(one), expected, rtol=1e-10)


# Of one size where they can be: programs are then compiled once for each update.
DEGENERATE = {
    "repeated rows": np.repeat(np.array([[0.0, 1.0, 5.0], [2.0, -1.0, 5.0]]), 6, axis=0),
    "a constant column": np.column_stack([np.arange(12.0), np.full(12, 0.1), np.arange(12.0) % 5]),
    "more features than instances": np.random.default_rng(0).normal(size=(12, 40)),
    "collinear features": np.outer(np.arange(12.0), [1.0, -2.0, 0.5]),
    "far from the origin": 1e6 + np.random.default_rng(1).normal(size=(12, 3)),
    "of all sizes": np.random.default_rng(2).normal(size=(12, 3)) * [1e-6, 1.0, 1e6],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "covariance", "label_update"),
    [
        *(
            (name, "full", update)
            for name, update in zip(DEGENERATE, cycle(["soft", "hard"]), strict=False)
        ),
        ("a constant column", "diagonal", "hard"),
    ],
)
def test_degenerate_data_give_a_finite_bound_that_never_falls(name, covariance, label_update):
    instances = DEGENERATE[name]
    bags = Bags.from_arrays(instances, np.repeat(np.arange(6), 2), [0, 1] * 3)
    model = DPMIL.for_bags(bags, covariance=covariance)  # 20 components for 12 instances
    posterior = coordinate_ascent(
        model, bags, seed=0, label_update=label_update, num_starts=2, num_draws=10, max_steps=50
    )
    assert posterior.status.kind in ("converged", "max_steps")
    assert np.isfinite(posterior.elbo).all()
    prediction = posterior.predict(bags)
    assert np.isfinite(prediction.bag_probability).all()
    assert np.isfinite(prediction.instance_probability).all()
    assert np.isfinite(posterior.draws_with_estimands["log_density"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_update": "exact"}, "label_update is 'exact'; expected one of soft, hard for"),
        ({"num_starts": 0}, "num_starts is 0; expected an integer of at least 1"),
        ({"learn_hyperparameters": True}, "DPMIL has fixed hyper-parameters"),
    ],
)
def test_bad_options_are_refused(bags, without_type_checks, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        coordinate_ascent(DPMIL.for_bags(bags, 2), bags, seed=0, **options)


def test_starts_of_a_model_that_has_one_are_refused(bags):
    with pytest.raises(ValueError, match="num_starts is 3, but the closed form of VWSGP has one"):
        coordinate_ascent(VWSGP.for_bags(bags, 3), bags, seed=0, num_starts=3)


def test_bags_without_labels_are_refused(bags):
    model = DPMIL.for_bags(bags, 2)
    with pytest.raises(ValueError, match="bags have no labels; the closed form of DPMIL needs one"):
        coordinate_ascent(model, replace(bags, labels=None), seed=0)
