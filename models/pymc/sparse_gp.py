"""Priors, process and integrals that the PyMC programs of sparse GP models have in common."""

from __future__ import annotations

import math
from functools import reduce, singledispatch
from operator import add, mul
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

from ...datasets.bags import Bags
from ..parts.hyperpriors import Parameters, component_distributions, number_or_array
from ..parts.kernels import (
    RBF,
    Cosine,
    Kernel,
    Linear,
    Matern32,
    Matern52,
    Product,
    StationaryKernel,
    Sum,
)
from ..parts.sparse_gp import SparseGPModel

try:
    import pymc as pm
    import pytensor
    import pytensor.tensor
    from pytensor.compile.builders import OpFromGraph
    from pytensor.compile.sharedvalue import shared
except ImportError as error:
    raise ImportError(
        f"{error.name} is not installed, and the PyMC program needs it: pip install 'milzoo[pymc]'"
    ) from error

__all__ = [
    "REACH",
    "SparseProcess",
    "Tensor",
    "accumulated_process",
    "check_program",
    "covariance_function",
    "draw_inducing_value",
    "draw_latent",
    "evaluated",
    "log_expected_negative",
    "log_normal_probability",
    "log_sum_exp",
    "parameter",
    "pm",
    "pt",
    "sparse_process",
    "sum_over_bags",
    "trapezoid",
]

# To type checkers the elementwise functions of PyTensor return None, and its variables have no
# operators.
pt: Any = pytensor.tensor
Tensor = Any

# Priors, with PyMC's names of their parameters.
_IN_PYMC: dict[type, tuple[Any, dict[str, str]]] = {
    dist.Beta: (pm.Beta, {"alpha": "concentration1", "beta": "concentration0"}),
    dist.Gamma: (pm.Gamma, {"alpha": "concentration", "beta": "rate"}),
    dist.HalfNormal: (pm.HalfNormal, {"sigma": "scale"}),
    dist.InverseGamma: (pm.InverseGamma, {"alpha": "concentration", "beta": "rate"}),
    dist.LogNormal: (pm.LogNormal, {"mu": "loc", "sigma": "scale"}),
    dist.Normal: (pm.Normal, {"mu": "loc", "sigma": "scale"}),
}
# −log of the relative error of an integral.
_LOG_ACCURACY = 28.0
# Nodes go this many sds beyond the mass of the integrand: 2e-9 is neglected.
REACH = 6.0


def check_program(program: str) -> None:
    """Raise an error for a program other than ``marginal`` and ``full``.

    Raises
    ------
    ValueError
        If it is neither of the two.
    """
    if program not in ("marginal", "full"):
        raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")


def parameter(name: str, value: Parameters, *, dims: str | None = None) -> Tensor:
    """A number as a constant, or a NumPyro prior as a PyMC variable of the same distribution.

    With ``dims`` it is an array of independent draws.

    Raises
    ------
    ValueError
        If PyMC has no counterpart of the prior.
    """
    if not isinstance(value, dist.Distribution):
        return pt.constant(number_or_array(value))
    prior: Any = component_distributions(value)
    if type(prior) not in _IN_PYMC:
        raise ValueError(
            f"prior of {name} is {type(prior).__name__}; expected one that PyMC has too: "
            "Beta, Gamma, HalfNormal, InverseGamma, LogNormal or Normal"
        )
    make, names = _IN_PYMC[type(prior)]
    given = {theirs: number_or_array(getattr(prior, ours)) for theirs, ours in names.items()}
    return make(name, dims=dims, **given)


# ---------------------------------------------------------------- the Gaussian process


class SparseProcess(NamedTuple):
    """Rows f | ε ~ N(Vε, s²), independent of each other, with u = Lε and ε ~ N(0, I).

    Attributes
    ----------
    cholesky : tensor (M, M)
        L, with K_ZZ = LLᵀ.
    projection : tensor (N, M) or (B, M)
        V.
    scale : tensor (N,) or (B,)
        s.
    """

    cholesky: Tensor
    projection: Tensor
    scale: Tensor


def sparse_process(model: SparseGPModel, bags: Bags) -> SparseProcess:
    """Latent values of the instances: V = K_XZ L⁻ᵀ and s² = k̃."""
    cholesky, projection, variance = _conditional(model, bags)
    return _looked_up_if_fixed(model.kernel, cholesky, projection, pt.sqrt(variance))


def accumulated_process(model: SparseGPModel, bags: Bags) -> SparseProcess:
    """Sums of latent values of bags, a row for each: V_b = Σ_{n∈b} V_n and s_b² = Σ k̃_n."""
    cholesky, projection, variance = _conditional(model, bags)
    return _looked_up_if_fixed(
        model.kernel,
        cholesky,
        sum_over_bags(projection, bags),
        pt.sqrt(sum_over_bags(variance, bags)),
    )


def draw_inducing_value(process: SparseProcess) -> Tensor:
    """The sites ``whitened_inducing_value`` (ε) and ``inducing_value`` (u = Lε); returns Vε."""
    whitened = pm.Normal("whitened_inducing_value", dims="inducing_point")  # ε
    pm.Deterministic("inducing_value", process.cholesky @ whitened, dims="inducing_point")
    return process.projection @ whitened


def draw_latent(location: Tensor, scale: Tensor) -> Tensor:
    """The sites ``white_latent`` (η) and ``latent`` (f = location + scale η)."""
    noise = pm.Normal("white_latent", dims="instance")  # η
    return pm.Deterministic("latent", location + scale * noise, dims="instance")


def sum_over_bags(values: Tensor, bags: Bags) -> Tensor:
    """Sums Σ_{n∈b} over the instances of each bag; ``values`` have a row for each instance."""
    return pt.zeros((bags.num_bags, *values.shape[1:]))[bags.bag_index].inc(values)


def evaluated(*tensors: Tensor) -> list[Tensor]:
    """Shared variables with the values of tensors that depend on no random variable."""
    return [shared(tensor.eval(mode="FAST_COMPILE")) for tensor in tensors]


def _conditional(model: SparseGPModel, bags: Bags) -> tuple[Tensor, Tensor, Tensor]:
    """L, V = K_XZ L⁻ᵀ and k̃."""
    covariance = covariance_function(model.kernel, bags.num_features)
    inducing_points, instances = pt.constant(model.inducing_points), pt.constant(bags.instances)
    average = covariance(inducing_points, diag=True).mean()
    jitter = max(model.jitter, 8 * float(np.finfo(float).eps)) * average
    within = covariance(inducing_points) + jitter * pt.eye(len(model.inducing_points))
    cholesky = pt.linalg.cholesky(within)
    across = covariance(inducing_points, instances)
    projection = pt.linalg.solve_triangular(cholesky, across, lower=True).T
    # k̃_n = k(x_n, x_n) − A_n K_Zn; the jitter keeps rounding from making it negative.
    variance = covariance(instances, diag=True)
    residual_variance = pt.maximum(variance - (projection**2).sum(-1), jitter)
    return cholesky, projection, residual_variance


@singledispatch
def covariance_function(kernel: Kernel, num_features: int, ending: str = "") -> Any:
    """A kernel as a covariance function of PyMC; those of more classes can be registered.

    Parameters
    ----------
    kernel : Kernel
    num_features : int
    ending : str
        Of the names of its parameters, where it is a part of another kernel.

    Returns
    -------
    pm.gp.cov.BaseCovariance

    Raises
    ------
    NotImplementedError
        If the kernel has none.
    """
    raise NotImplementedError(
        f"kernel is {type(kernel).__name__}, which has no PyMC program; sample with nuts instead"
    )


@covariance_function.register(RBF)
@covariance_function.register(Matern32)
@covariance_function.register(Matern52)
def _(kernel: StationaryKernel, num_features: int, ending: str = "") -> Any:
    by_class = {RBF: "ExpQuad", Matern32: "Matern32", Matern52: "Matern52"}
    correlation = getattr(pm.gp.cov, by_class[type(kernel)])
    variance = parameter(f"variance{ending}", kernel.variance)
    length_scale = parameter(f"length_scale{ending}", kernel.length_scale)
    return variance * correlation(num_features, ls=length_scale)


@covariance_function.register
def _(kernel: Cosine, num_features: int, ending: str = "") -> Any:
    inner = pm.gp.cov.Linear(num_features, c=0.0)
    correlation = pm.gp.cov.WarpedInput(num_features, inner, warp_func=_of_length_one)
    return parameter(f"variance{ending}", kernel.variance) * correlation


@covariance_function.register
def _(kernel: Linear, num_features: int, ending: str = "") -> Any:
    variance = parameter(f"variance{ending}", kernel.variance)
    return variance * pm.gp.cov.Linear(num_features, c=0.0)


@covariance_function.register
def _(kernel: Sum, num_features: int, ending: str = "") -> Any:
    return reduce(add, _parts(kernel, num_features, ending))


@covariance_function.register
def _(kernel: Product, num_features: int, ending: str = "") -> Any:
    return reduce(mul, _parts(kernel, num_features, ending))


def _parts(kernel: Sum | Product, num_features: int, ending: str) -> list[Any]:
    return [
        covariance_function(part, num_features, f"_{number}{ending}")
        for number, part in enumerate(kernel.parts, 1)
    ]


def _of_length_one(rows: Tensor) -> Tensor:
    squared = (rows**2).sum(axis=1, keepdims=True)
    return rows / pt.sqrt(pt.switch(squared > 0, squared, 1.0))


def _looked_up_if_fixed(kernel: Kernel, *parts: Tensor) -> SparseProcess:
    return SparseProcess(*(parts if kernel.priors else evaluated(*parts)))


# ---------------------------------------------------------------- integrals over latent values


def trapezoid(
    largest_scale: Tensor, pole: Tensor, *, reach: Tensor, centre: Tensor = 0.0
) -> tuple[Tensor, Tensor]:
    """Nodes z_k and log w_k with Σ_k w_k g(a + s z_k) ≈ E g(f), f ~ N(a, s²), any s ≤ largest.

    The trapezoid rule with step h errs by exp(y²/2 − 2πy/h), where y is the distance by
    which the path of integration leaves the real line. It ends at the pole of g, at d/s, or at
    2π/h, beyond which nothing is gained. h is chosen so that this error is e^−28.

    Parameters
    ----------
    largest_scale : tensor
    pole : float or tensor
        d, the distance of the nearest pole of g from the real line.
    reach : tensor
        How far the nodes go to either side.
    centre : tensor () or (K,)
        Centre of the nodes, rounded to a multiple of h; derivatives by it are 0, as the integral
        does not depend on it.

    Returns
    -------
    tuple of tensors
        Columns, or one for each centre. Weights are in logs: past 38 they are 0 in 64 bit, where
        a g that grows may still have its mass.
    """
    distance = pt.minimum(pole / largest_scale, math.sqrt(2 * _LOG_ACCURACY))  # y
    step = 2 * math.pi * distance / (_LOG_ACCURACY + distance**2 / 2)  # h
    last = pt.ceil(reach / step)
    nodes = step * (pt.round(centre / step) + pt.arange(-last, last + 1)[:, None])
    return nodes, pt.log(step) - 0.5 * nodes**2 - 0.5 * math.log(2 * math.pi)


def log_expected_negative(location: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """log E[1 − σ(f)] from the table e^{s z_k}: one division for each node, none for the gradient.

    With R = 1 − σ(f) = 1/(1 + e^a e^{s z}) and ∂R/∂a = −R(1 − R), the derivative of log E R by a is
    E R² / E R − 1.
    """

    def negative(a: Tensor, table: Tensor) -> Tensor:  # R
        return 1.0 / (1.0 + pt.exp(a) * table)

    def pullback(inputs: list[Tensor], _: list[Tensor], cotangents: list[Tensor]) -> list[Tensor]:
        a, table, weights = inputs
        one, two = pt.dot(weights, negative(a, table)), pt.dot(weights, negative(a, table) ** 2)
        return [cotangents[0] * (two / one - 1.0), pt.zeros_like(table), pt.zeros_like(weights)]

    a, e, w = pt.vector(), pt.matrix(), pt.vector()
    log_expectation = OpFromGraph(
        [a, e, w], [pt.log(pt.dot(w, negative(a, e)))], inline=True, pullback=pullback
    )
    return log_expectation(location, table, weights)


def log_sum_exp(log_values: Tensor, log_weights: Tensor) -> Tensor:
    """log Σ_k w_k g_k."""
    return pt.logsumexp(log_values + log_weights, axis=0)


def log_normal_probability(argument: Tensor) -> Tensor:
    """log Φ(x), by erfcx below 0 and by erfc above, so that neither overflows.

    PyMC's own is wrong by 1e-8, and its gradient by a part in 1e7.
    """
    below, above = pt.minimum(argument, 0.0), pt.maximum(argument, 0.0)
    return pt.switch(
        argument < 0.0,
        pt.log(0.5 * pt.erfcx(-below / math.sqrt(2))) - 0.5 * below**2,
        pt.log1p(-0.5 * pt.erfc(above / math.sqrt(2))),
    )
