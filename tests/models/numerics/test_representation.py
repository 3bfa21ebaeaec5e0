"""Models as the calls that make them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.models import RBF, VWSGP, Gaussian
from milzoo.models.numerics.tracing import as_pytree


def test_a_model_shows_the_call_that_makes_it():
    kernel = RBF(dist.LogNormal(0.0, 0.5), dist.Gamma(2.0, 3.0))
    model = VWSGP(kernel, np.eye(2), likelihood=Gaussian(dist.HalfNormal(2.0)))
    assert repr(model) == (
        "VWSGP(kernel=RBF(variance=LogNormal(loc=0.0, scale=0.5), "
        "length_scale=Gamma(concentration=2.0, rate=3.0)), jitter=1e-06, "
        "likelihood=Gaussian(noise=HalfNormal(scale=2.0)))"
    )


@pytest.mark.parametrize(
    ("prior", "shown"),
    [
        (
            dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()),
            "TransformedDistribution(Normal(loc=0.0, scale=1.0), ExpTransform())",
        ),
        (
            dist.TruncatedNormal(1.0, 2.0, low=0.0),
            "LeftTruncatedDistribution(base_dist=Normal(loc=1.0, scale=2.0), low=0.0)",
        ),
        (
            dist.Gamma(2.0).expand([3]).to_event(1),
            "Independent(base_dist=ExpandedDistribution(base_dist=Gamma(concentration=2.0, "
            "rate=1.0), batch_shape=(3,)), reinterpreted_batch_ndims=1)",
        ),
    ],
    ids=["transformed", "truncated", "for each feature"],
)
def test_a_prior_within_a_prior_is_shown(prior, shown):
    assert repr(RBF(1.0, prior)) == f"RBF(variance=1.0, length_scale={shown})"


def test_a_refused_prior_is_shown_as_its_call():
    for make, shown in (
        (lambda: RBF(dist.Normal(0.0, 1.0), 1.0), r"RBF variance is Normal\(loc=0.0, scale=1.0\)"),
        (lambda: VWSGP(dist.Gamma(2.0), np.eye(2)), r"VWSGP kernel is Gamma\(concentration=2.0, "),
    ):
        with pytest.raises(ValueError, match=shown):
            make()


def test_numbers_are_shown_in_their_own_digits():
    kernel = RBF(jnp.float32(0.1), np.float64(1 / 3))
    assert repr(kernel) == "RBF(variance=0.1, length_scale=0.3333333333333333)"


def test_a_class_keeps_what_it_shows_of_itself():
    @as_pytree()
    @dataclass(frozen=True)
    class Secret:
        value: float

        def __repr__(self):
            return "a secret"

    assert repr(Secret(1.0)) == "a secret"
