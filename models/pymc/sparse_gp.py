"""Priors, Gaussian processes and quadrature for the PyMC programs of sparse-GP models."""

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

# Any, because type checkers find that PyTensor's elementwise functions return None and that its
# variables have no operators.
pt: Any = pytensor.tensor
Tensor = Any

# PyMC's class for each prior, and NumPyro's name for each parameter of PyMC.
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
# Nodes reach this many sds beyond the mass of the integrand, and neglect 2e-9 of it.
REACH = 6.0


def check_program(program: str) -> None:
    """Check that the name of a program is ``marginal`` or ``full``.

    Raises
    ------
    ValueError
        If it is neither of the two.
    """
    if program not in ("marginal", "full"):
        raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")


def parameter(name: str, value: Parameters, *, dims: str | None = None) -> Tensor:
    """Convert a number to a constant, or a NumPyro prior to a PyMC variable with its distribution.

    With ``dims`` the variable is an array of independent draws.

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
    """Gaussian process given whitened inducing values: independent rows f | ε ~ N(Vε, s²).

    The inducing values are u = Lε, with ε ~ N(0, I).

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
    """Sparse process of the latent values of the instances: V = K_XZ L⁻ᵀ and s² = k̃."""
    cholesky, projection, variance = _conditional(model, bags)
    return _looked_up_if_fixed(model.kernel, cholesky, projection, pt.sqrt(variance))


def accumulated_process(model: SparseGPModel, bags: Bags) -> SparseProcess:
    """Sparse process of the latent values summed over each bag: V_b = Σ_{n∈b} V_n, s_b² = Σ k̃_n."""
    cholesky, projection, variance = _conditional(model, bags)
    return _looked_up_if_fixed(
        model.kernel,
        cholesky,
        sum_over_bags(projection, bags),
        pt.sqrt(sum_over_bags(variance, bags)),
    )


def draw_inducing_value(process: SparseProcess) -> Tensor:
    """Add the sites ``whitened_inducing_value`` (ε) and ``inducing_value`` (u = Lε); return Vε."""
    whitened = pm.Normal("whitened_inducing_value", dims="inducing_point")  # ε
    pm.Deterministic("inducing_value", process.cholesky @ whitened, dims="inducing_point")
    return process.projection @ whitened


def draw_latent(location: Tensor, scale: Tensor) -> Tensor:
    """Add the sites ``whitened_latent`` (η) and ``latent`` (f = location + scale η); return f."""
    noise = pm.Normal("whitened_latent", dims="instance")  # η
    return pm.Deterministic("latent", location + scale * noise, dims="instance")


def sum_over_bags(values: Tensor, bags: Bags) -> Tensor:
    """Sum over the instances of each bag; ``values`` has a row for each instance."""
    return pt.zeros((bags.num_bags, *values.shape[1:]))[bags.bag_index].inc(values)


def evaluated(*tensors: Tensor) -> list[Tensor]:
    """Evaluate tensors of no random variable once, and store the values as shared variables."""
    return [shared(tensor.eval(mode="FAST_COMPILE")) for tensor in tensors]


def _conditional(model: SparseGPModel, bags: Bags) -> tuple[Tensor, Tensor, Tensor]:
    """Conditional distribution of the latent values given ε: L, V = K_XZ L⁻ᵀ and k̃."""
    covariance = covariance_function(model.kernel, bags.num_features)
    inducing_points, instances = pt.constant(model.inducing_points), pt.constant(bags.instances)
    average = covariance(inducing_points, diag=True).mean()
    jitter = max(model.jitter, 8 * float(np.finfo(float).eps)) * average
    within = covariance(inducing_points) + jitter * pt.eye(len(model.inducing_points))
    cholesky = pt.linalg.cholesky(within)
    across = covariance(inducing_points, instances)
    projection = pt.linalg.solve_triangular(cholesky, across, lower=True).T
    # k̃_n = k(x_n, x_n) − A_n K_Zn is at least the jitter, because rounding can make it negative.
    variance = covariance(instances, diag=True)
    residual_variance = pt.maximum(variance - (projection**2).sum(-1), jitter)
    return cholesky, projection, residual_variance


@singledispatch
def covariance_function(kernel: Kernel, num_features: int, ending: str = "") -> Any:
    """Convert a kernel to a PyMC covariance function; ``register`` adds one for another class.

    Parameters
    ----------
    kernel : Kernel
    num_features : int
    ending : str
        Ending of the names of its parameters, if it is a part of another kernel.

    Returns
    -------
    pm.gp.cov.BaseCovariance

    Raises
    ------
    NotImplementedError
        If PyMC has no counterpart of the kernel.
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
    """Nodes z_k and log weights log w_k for Gaussian expectations: Σ_k w_k g(a + s z_k) ≈ E g(f).

    Here f ~ N(a, s²), for any s up to the largest. Let y be the distance of the path of integration
    from the real line. With the step h the trapezoid rule has an error of exp(y²/2 − 2πy/h). The
    pole of g limits y to d/s. Beyond y = 2π/h the error grows again. The step h is chosen so that
    the error is e^−28.

    Parameters
    ----------
    largest_scale : tensor
    pole : float or tensor
        d, the distance of the nearest pole of g from the real line.
    reach : tensor
        Distance from the centre to the last node on either side.
    centre : tensor () or (K,)
        Centre of the nodes, rounded to a multiple of h. Derivatives with respect to it are 0,
        because the integral does not depend on it.

    Returns
    -------
    tuple of tensors
        One column, or one for each centre. Weights are in logs, because they underflow in 64 bit
        beyond |z| = 38. A growing g may still have its mass there.
    """
    distance = pt.minimum(pole / largest_scale, math.sqrt(2 * _LOG_ACCURACY))  # y
    step = 2 * math.pi * distance / (_LOG_ACCURACY + distance**2 / 2)  # h
    last = pt.ceil(reach / step)
    nodes = step * (pt.round(centre / step) + pt.arange(-last, last + 1)[:, None])
    return nodes, pt.log(step) - 0.5 * nodes**2 - 0.5 * math.log(2 * math.pi)


def log_expected_negative(location: Tensor, table: Tensor, weights: Tensor) -> Tensor:
    """Log probability of a negative label, log E[1 − σ(f)], from the table e^{s z_k}.

    Each node takes one division, and the gradient none. Let R = 1 − σ(f) = 1/(1 + e^a e^{s z}), so
    that ∂R/∂a = −R(1 − R). The derivative of log E R with respect to a is E R² / E R − 1.
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
    """Log of the weighted sum over nodes, log Σ_k w_k g_k."""
    return pt.logsumexp(log_values + log_weights, axis=0)


def log_normal_probability(argument: Tensor) -> Tensor:
    """Log of the standard normal distribution function, log Φ(x).

    It uses erfcx below 0 and erfc above 0, so that neither overflows. PyMC's own function has an
    error of 1e-8, and its gradient a relative error of 1e-7.
    """
    below, above = pt.minimum(argument, 0.0), pt.maximum(argument, 0.0)
    return pt.switch(
        argument < 0.0,
        pt.log(0.5 * pt.erfcx(-below / math.sqrt(2))) - 0.5 * below**2,
        pt.log1p(-0.5 * pt.erfc(above / math.sqrt(2))),
    )
