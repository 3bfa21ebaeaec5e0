"""Networks that learn features of instances from labels of bags: ``pip install milzoo[deep]``.

`AttentionNetwork` is the attention-based classifier of Ilse et al. (2018), and a transformer: the
features that it has learned go on to any model of the zoo, as in the two stages of Castro-Macías et
al. (2024, section 6.3). `DeepVGPMIL` learns features, kernel, inducing points and q(u) together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from jaxtyping import Array, Float
from scipy.special import expit, logit
from sklearn.base import TransformerMixin

from ..datasets.arguments import POSITIVE, WHOLE, Rule, is_whole
from ..datasets.bags import Bags
from ..datasets.checks import num_distinct_rows, read_only
from ..datasets.padding import bag_weight, bucket, padded, padded_to
from ..inference import coordinate_ascent
from ..inference.closed_form.sparse_gp import InducingApproximation
from ..inference.posterior import Status, approximate_posterior
from ..inference.runtime.programs import Stopwatch
from ..models import RBF, VGPMIL
from ..models.model import random_key, split_key
from ..models.numerics.quadrature import log_expected_sigmoid, logistic_rule
from ..models.parts.bag_labels import NoisyMaximum
from ..models.parts.sparse_gp import sparse_conditional
from ..models.parts.witnesses import sum_over_bags
from .contract import ProbabilisticBagClassifier, ScoresInstances

try:
    import equinox as eqx
except ImportError as error:
    raise ImportError(
        "milzoo.estimators.deep needs equinox, which is not installed: pip install 'milzoo[deep]'"
    ) from error

__all__ = ["AttentionNetwork", "DeepVGPMIL"]

# Channels of the two convolutions, and units of the layer before the features.
_CHANNELS, _UNITS = (8, 16), 64
# Units of the layer that attention is a function of.
_ATTENTION_UNITS = 32
_JITTER = 1e-6
# Of the kernel while it is learned: v below its square serves the quadrature.
_LARGEST_SCALE = 4.0
# Draws of u at each step, and in a posterior.
_DRAWS, _KEPT_DRAWS = 4, 1000
# Odds that the label of a bag is the maximum of its instances', as in the paper.
_SHARPNESS = 100.0

_IMAGE = Rule(
    "None, or two integers of at least 4, the height and width of an instance",
    lambda value: (
        value is None
        or (
            isinstance(value, tuple)
            and len(value) == 2
            and all(is_whole(side) and side >= 4 for side in value)
        )
    ),
)


class _OfImages(eqx.Module):
    """Image → features between −1 and 1: two convolutions with pooling, and a dense layer."""

    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    dense: eqx.nn.Linear
    image_shape: tuple[int, int] = eqx.field(static=True)

    def __call__(self, instance: Float[Array, " P"]) -> Float[Array, " D"]:
        pool = eqx.nn.MaxPool2d(2, 2)
        image = instance.reshape(1, *self.image_shape)
        value = pool(jax.nn.relu(self.first(image)))
        value = pool(jax.nn.relu(self.second(value)))
        return jnp.tanh(self.dense(value.ravel()))


class _OfVectors(eqx.Module):
    """Instance → features between −1 and 1: two dense layers."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __call__(self, instance: Float[Array, " P"]) -> Float[Array, " D"]:
        return jnp.tanh(self.second(jax.nn.relu(self.first(instance))))


def _features(
    num_inputs: int, num_features: int, image_shape: tuple[int, int] | None, key: Array
) -> _OfImages | _OfVectors:
    """A network of instances with random weights, in 32 bit."""
    options: Any = {"dtype": jnp.float32}
    first, second, third = split_key(key, 3)
    if image_shape is None:
        return _OfVectors(
            eqx.nn.Linear(num_inputs, _UNITS, key=first, **options),
            eqx.nn.Linear(_UNITS, num_features, key=second, **options),
        )
    few, many = _CHANNELS
    size = many * math.prod(side // 4 for side in image_shape)
    return _OfImages(
        eqx.nn.Conv2d(1, few, 3, padding=1, key=first, **options),
        eqx.nn.Conv2d(few, many, 3, padding=1, key=second, **options),
        eqx.nn.Linear(size, num_features, key=third, **options),
        image_shape,
    )


class _Attention(eqx.Module):
    """Features h_n → log odds of each bag: cᵀ Σ a_n h_n, a_n ∝ exp wᵀ tanh(V h_n) within a bag."""

    features: _OfImages | _OfVectors
    hidden: eqx.nn.Linear  # V
    weight: eqx.nn.Linear  # w
    output: eqx.nn.Linear  # c

    def log_odds(self, bags: Bags) -> Float[Array, " B"]:
        """Log odds of a positive label."""
        features = jax.vmap(self.features)(_pixels(bags))
        attention = jax.vmap(lambda h: self.weight(jnp.tanh(self.hidden(h))))(features)
        pooled = _softmax_mean(attention, features, bags)
        return jax.vmap(self.output)(pooled)[:, 0]

    def loss(self, bags: Bags, num_bags: Array, key: Array) -> Float[Array, ""]:
        """Negative log likelihood."""
        sign = 2.0 * jnp.asarray(bags.labels) - 1.0
        return -_mean_over_bags(jax.nn.log_sigmoid(sign * self.log_odds(bags)), bags)

    def instance_log_odds(self, bags: Bags) -> Float[Array, " N"]:
        """Those of a bag of the instance alone, whose attention is 1."""
        return jax.vmap(lambda x: self.output(self.features(x))[0])(_pixels(bags))


def _pixels(bags: Bags) -> Float[Array, "N P"]:
    return jnp.asarray(bags.instances, jnp.float32)


def _softmax_mean(
    attention: Float[Array, "N 1"], features: Float[Array, "N D"], bags: Bags
) -> Float[Array, "B D"]:
    """Σ a_n h_n of each bag, with a_n ∝ exp(attention) within it."""
    index = jnp.asarray(bags.bag_index)
    largest = jax.ops.segment_max(attention, index, bags.num_bags, indices_are_sorted=True)
    relative = jnp.exp(attention - largest[index])
    total = sum_over_bags(relative, index, bags.num_bags)
    weighted = sum_over_bags(relative * features, index, bags.num_bags)
    return weighted / jnp.maximum(total, jnp.finfo(total.dtype).tiny)


class _DeepGP(eqx.Module):
    """Features, kernel, inducing points and q(ε) = N(m, RRᵀ) of u = Lε."""

    features: _OfImages | _OfVectors
    inducing_points: Float[Array, "M D"]
    variance_logit: Float[Array, ""]
    log_length_scale: Float[Array, ""]
    prior_mean: Float[Array, ""]  # μ0
    mean: Float[Array, " M"]
    root: Float[Array, "M M"]

    def loss(self, bags: Bags, num_bags: Array, key: Array) -> Float[Array, ""]:
        """Negative ELBO of all ``num_bags`` bags, over their number."""
        log_likelihood = _expected_log_likelihood(self, bags, key)
        return _divergence_from_prior(self) / num_bags - _mean_over_bags(log_likelihood, bags)

    @property
    def kernel(self) -> RBF:
        """With v below the largest that the quadrature is made for."""
        variance = _LARGEST_SCALE**2 * jax.nn.sigmoid(self.variance_logit)
        return RBF(variance, jnp.exp(self.log_length_scale))

    @property
    def lower_root(self) -> Float[Array, "M M"]:
        """R."""
        return jnp.tril(self.root, -1) + jnp.diag(jnp.exp(jnp.diagonal(self.root)))


# ------------------------------------------------------------------ training


@eqx.filter_jit
def _step(
    network: Any, state: Any, bags: Bags, num_bags: Array, key: Array, learning_rate: float
) -> tuple[Any, Any, Float[Array, ""]]:
    """One step of Adam on the loss of some bags, by bag."""

    def loss_of(network: Any) -> Float[Array, ""]:
        return network.loss(bags, num_bags, key)

    loss, gradient = eqx.filter_value_and_grad(loss_of)(network)
    changes, state = optax.adam(learning_rate).update(gradient, state)
    return eqx.apply_updates(network, changes), state, loss


def _mean_over_bags(values: Float[Array, " B"], bags: Bags) -> Float[Array, ""]:
    """Of the bags that are there."""
    weight = jnp.asarray(bag_weight(bags))
    return (weight @ values) / weight.sum()


def _expected_log_likelihood(network: _DeepGP, bags: Bags, key: Array) -> Float[Array, " B"]:
    """E log P(T_b | u) over q(u), by draws of u; latent values are integrated out."""
    features = jax.vmap(network.features)(_pixels(bags)).astype(network.mean.dtype)
    conditional = sparse_conditional(network.kernel, network.inducing_points, features, _JITTER)
    noise = jax.random.normal(key, (_DRAWS, len(network.mean)), network.mean.dtype)
    rule = logistic_rule(_LARGEST_SCALE)

    def of_draw(noise: Float[Array, " M"]) -> Float[Array, " B"]:
        whitened = network.mean + network.lower_root @ noise
        location = network.prior_mean + conditional.projection @ whitened
        log_negative = log_expected_sigmoid(-location, conditional.residual_scale, rule)
        log_none = sum_over_bags(log_negative, jnp.asarray(bags.bag_index), bags.num_bags)
        return NoisyMaximum(log_none, _SHARPNESS).log_prob(jnp.asarray(bags.labels))

    return jax.vmap(of_draw)(noise).mean(axis=0)


def _divergence_from_prior(network: _DeepGP) -> Float[Array, ""]:
    """KL(q(ε) ‖ N(0, I)) = ½ [tr RRᵀ + mᵀm − M] − log|R|."""
    root, size = network.lower_root, len(network.mean)
    squares = jnp.sum(root**2) + network.mean @ network.mean
    return 0.5 * (squares - size) - jnp.sum(jnp.diagonal(network.root))


def _batches(bags: Bags, batch_bags: int, random: np.random.Generator) -> Iterator[Bags]:
    """All bags once in a random order, padded to one size."""
    largest = np.sort(bags.bag_sizes)[-batch_bags:].sum()
    order = random.permutation(len(bags))
    for start in range(0, len(bags), batch_bags):
        batch = bags[np.sort(order[start : start + batch_bags])]
        yield padded_to(batch, bucket(int(largest)), bucket(batch_bags + 1))


@eqx.filter_jit
def _features_of(network: Any, bags: Bags) -> Float[Array, "N D"]:
    return jax.vmap(network.features)(_pixels(bags))


@eqx.filter_jit
def _log_odds_of(network: _Attention, bags: Bags) -> tuple[Array, Array]:
    return network.log_odds(bags), network.instance_log_odds(bags)


# ------------------------------------------------------------------ estimators


class _DeepClassifier(TransformerMixin, ScoresInstances, ProbabilisticBagClassifier):
    """A network, trained by Adam on batches of bags."""

    _rules = {
        "num_features": WHOLE,
        "image_shape": _IMAGE,
        "num_epochs": WHOLE,
        "batch_bags": WHOLE,
        "learning_rate": POSITIVE,
    }

    num_features: int
    image_shape: tuple[int, int] | None
    num_epochs: int
    batch_bags: int
    learning_rate: float
    seed: int | Array

    def transform(self, bags: Bags) -> Bags:
        """The bags with the learned features in place of their instances' own.

        Parameters
        ----------
        bags : Bags

        Returns
        -------
        Bags
        """
        return self._transformed(self._checked(bags))

    def _transformed(self, bags: Bags) -> Bags:
        found = np.asarray(_features_of(self.network_, padded(bags.without_labels())), float)
        return replace(bags, instances=read_only(found[: bags.num_instances]))

    def _check_image(self, bags: Bags) -> None:
        if self.image_shape is not None and math.prod(self.image_shape) != bags.num_features:
            raise ValueError(
                f"{type(self).__name__} image_shape is {self.image_shape}, and bags have "
                f"{bags.num_features} features; expected as many as pixels"
            )

    def _train(self, network: Any, bags: Bags, key: Array) -> Any:
        """Run all epochs."""
        state = optax.adam(self.learning_rate).init(eqx.filter(network, eqx.is_inexact_array))
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        count, losses = jnp.asarray(float(len(bags))), []
        for _ in range(self.num_epochs):
            of_epoch = []
            for batch in _batches(bags, self.batch_bags, random):
                key, step_key = split_key(key)
                network, state, loss = _step(
                    network, state, batch, count, step_key, float(self.learning_rate)
                )
                of_epoch.append(loss)
            losses.append(float(np.mean(of_epoch)))
        self.losses_ = np.array(losses)
        return network


class AttentionNetwork(_DeepClassifier):
    """Attention-based classifier of bags: a network of instances, pooled by learned weights.

    .. code-block:: text

        h_n = network(x_n),  a_n ∝ exp wᵀ tanh(V h_n) within the bag
        P(T_b = 1) = σ(cᵀ Σ_n a_n h_n + d)

    by maximum likelihood. An instance is scored as a bag of its own. `transform` replaces the
    features of instances by h_n, for a model of the zoo as the second stage.

    Parameters
    ----------
    num_features : int
        Of h_n.
    image_shape : pair of int or None
        Height and width, for convolutions; None for a dense network.
    num_epochs : int
    batch_bags : int
        Bags at a step.
    learning_rate : float
        Of Adam.
    seed : int or JAX key

    Attributes
    ----------
    network_ : equinox.Module
    losses_ : array (num_epochs,)
        Mean negative log likelihood of a bag, by epoch.
    classes_ : array (2,)
    n_features_in_ : int

    References
    ----------
    Ilse, Tomczak and Welling (2018); Castro-Macías et al. (2024), section 6.3.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.estimators.deep import AttentionNetwork
    >>> training, test = load("digits").split(0.7, seed=0)
    >>> training, test = training.standardize(), test.standardize(training)
    >>> network = AttentionNetwork(num_features=8, num_epochs=30, learning_rate=3e-3, seed=0)
    >>> network.fit(training).transform(test).num_features
    8
    >>> network.score(test) > 0.8
    True
    """

    def __init__(
        self,
        num_features: int = 32,
        *,
        image_shape: tuple[int, int] | None = None,
        num_epochs: int = 20,
        batch_bags: int = 32,
        learning_rate: float = 1e-3,
        seed: int | Array,
    ) -> None:
        self.num_features = num_features
        self.image_shape = image_shape
        self.num_epochs = num_epochs
        self.batch_bags = batch_bags
        self.learning_rate = learning_rate
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        self._check_image(bags)
        first, second, third, fourth, train_key = split_key(random_key(self.seed), 5)
        network = _Attention(
            _features(bags.num_features, self.num_features, self.image_shape, first),
            eqx.nn.Linear(self.num_features, _ATTENTION_UNITS, dtype=jnp.float32, key=second),
            eqx.nn.Linear(_ATTENTION_UNITS, 1, use_bias=False, dtype=jnp.float32, key=third),
            eqx.nn.Linear(self.num_features, 1, dtype=jnp.float32, key=fourth),
        )
        self.network_ = self._train(network, bags, train_key)

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return expit(self._decision(bags))

    def _decision(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self._all_log_odds(bags)[0]

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return self._all_log_odds(bags)[1]

    def _all_log_odds(self, bags: Bags) -> tuple[np.ndarray, np.ndarray]:
        of_bags, of_instances = _log_odds_of(self.network_, padded(bags))
        return (
            np.asarray(of_bags, float)[: bags.num_bags],
            np.asarray(of_instances, float)[: bags.num_instances],
        )


class DeepVGPMIL(_DeepClassifier):
    """VGPMIL on features that are learned with it: network, kernel, points and q(u) at once.

    Adam maximises the ELBO E_q Σ_b log P(T_b | u) − KL(q(u) ‖ p(u)), latent values integrated out,
    on batches of bags. It starts from features of attention and the closed form on them.
    ``posterior_`` is that of the last layer: a `Posterior` of `VGPMIL` on the learned features,
    which `compare` judges as any other, given these features.

    Parameters
    ----------
    num_features : int
    num_inducing : int
        M.
    num_attention_epochs : int
        Of `AttentionNetwork`, whose features are the first.
    image_shape, num_epochs, batch_bags, learning_rate, seed
        As of `AttentionNetwork`.

    Attributes
    ----------
    posterior_ : Posterior
        Of bags with learned features (`transform`).
    network_ : equinox.Module
    losses_ : array (num_epochs,)
        Mean negative ELBO by bag, by epoch.
    classes_ : array (2,)
    n_features_in_ : int

    References
    ----------
    Castro-Macías et al. (2024), section 7, asks for features that are not learned apart; the deep
    Gaussian process of López-Pérez et al. (2022), which they compare with, is another model.

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption
    >>> from milzoo.estimators.deep import DeepVGPMIL
    >>> training, test = standard_assumption(20, range(4, 8), num_features=2, seed=0)
    >>> network = DeepVGPMIL(4, 10, num_epochs=30, learning_rate=1e-2, seed=0).fit(training)
    >>> network.posterior_.model.inducing_points.shape
    (10, 4)
    >>> network.score(test) > 0.9
    True
    """

    _rules = {
        **_DeepClassifier._rules,
        "num_inducing": WHOLE,
        "num_attention_epochs": WHOLE,
    }

    def __init__(
        self,
        num_features: int = 8,
        num_inducing: int = 50,
        *,
        image_shape: tuple[int, int] | None = None,
        num_attention_epochs: int = 20,
        num_epochs: int = 20,
        batch_bags: int = 32,
        learning_rate: float = 1e-3,
        seed: int | Array,
    ) -> None:
        self.num_features = num_features
        self.num_inducing = num_inducing
        self.image_shape = image_shape
        self.num_attention_epochs = num_attention_epochs
        self.num_epochs = num_epochs
        self.batch_bags = batch_bags
        self.learning_rate = learning_rate
        self.seed = seed

    def _fit(self, bags: Bags) -> None:
        self._check_image(bags)
        watch, started = Stopwatch(), Stopwatch.now()
        start_key, train_key, draw_key = split_key(random_key(self.seed), 3)
        start = self._two_stages(bags, start_key)
        with jax.enable_x64(True):  # the network stays in 32 bit, the Gaussian process is in 64
            network = self._train(start, bags, train_key)
            self.network_, model = network, _model_of(network)
            cholesky = np.asarray(model.inducing_cholesky())
            approximation = InducingApproximation(
                cholesky @ np.asarray(network.mean),
                cholesky @ np.asarray(network.lower_root),
            )
            self.posterior_ = approximate_posterior(
                model,
                self._transformed(bags),
                approximation,
                engine="deep_vgpmil",
                key=draw_key,
                num_draws=_KEPT_DRAWS,
                status=Status("max_steps", f"{self.num_epochs} epochs of Adam"),
                seconds=Stopwatch.now() - started,
                watch=watch,
                elbo=-len(bags) * self.losses_,
            )

    def _two_stages(self, bags: Bags, key: Array) -> _DeepGP:
        """Features of attention, and VGPMIL on them: where the ascent of all begins.

        From random features on, the ELBO was seen to lead to a model that ignores them.
        """
        attention = AttentionNetwork(
            self.num_features,
            image_shape=self.image_shape,
            num_epochs=self.num_attention_epochs,
            batch_bags=self.batch_bags,
            seed=key,
        ).fit(bags)
        features = attention.transform(bags)
        num_inducing = min(self.num_inducing, num_distinct_rows(np.asarray(features.instances)))
        of_points = int(np.asarray(jax.random.key_data(key))[-1])
        model = VGPMIL.for_bags(features, num_inducing, seed=of_points)
        posterior = coordinate_ascent(model, features, seed=key, num_draws=1)
        cholesky, found = np.asarray(model.inducing_cholesky()), posterior.approximation
        assert isinstance(found, InducingApproximation)
        mean, root = (
            scipy.linalg.solve_triangular(cholesky, one, lower=True)
            for one in (found.mean, found.scale_tril)
        )
        variance = min(float(model.hyperparameters["variance"]), 0.9 * _LARGEST_SCALE**2)
        with jax.enable_x64(True):
            return _DeepGP(
                attention.network_.features,
                jnp.asarray(model.inducing_points),
                jnp.asarray(logit(variance / _LARGEST_SCALE**2)),
                jnp.asarray(math.log(float(model.hyperparameters["length_scale"]))),
                jnp.asarray(float(model.mean)),
                jnp.asarray(mean),
                jnp.asarray(np.tril(root, -1) + np.diag(np.log(np.diagonal(root)))),
            )

    def _probability(self, bags: Bags) -> Float[np.ndarray, " B"]:
        return self._predicted(bags).bag_probability

    def _instance_decision(self, bags: Bags) -> Float[np.ndarray, " N"]:
        return self._predicted(bags).instance_log_odds

    def _predicted(self, bags: Bags) -> Any:
        return self.posterior_.predict(self._transformed(bags))


def _model_of(network: _DeepGP) -> VGPMIL:
    """The last layer, with numbers in place of what was learned."""
    kernel = RBF(float(network.kernel.variance), float(network.kernel.length_scale))
    return VGPMIL(
        kernel,
        np.asarray(network.inducing_points),
        mean=float(network.prior_mean),
        sharpness=_SHARPNESS,
        jitter=_JITTER,
    )
