"""Entries as Stan programs with their data, for those who work with posteriordb or BridgeStan."""

from __future__ import annotations

from functools import singledispatch
from typing import Any, NamedTuple

import jax
import numpy as np

from ..datasets.bags import Bags
from ..models import VWSGP, Gaussian, Logistic, NegativeBinomial, Probit, StudentT
from ..models.model import Model, observations

__all__ = ["StanProgram", "stan_program"]

_PROGRAM = """\
// Sparse Gaussian process whose latent values are summed over a bag. With K_ZZ = L L' and
// u = L e, the sum of a bag is N(projection * e, residual_scale^2) given u.
data {{
  int<lower=1> num_bags;
  int<lower=1> num_inducing;
  matrix[num_inducing, num_inducing] cholesky;
  matrix[num_bags, num_inducing] projection;
  vector<lower=0>[num_bags] residual_scale;
  {observed}
{constants}}}
parameters {{
  vector[num_inducing] inducing_noise;
  vector[num_bags] bag_noise;
}}
transformed parameters {{
  vector[num_inducing] inducing_value = cholesky * inducing_noise;
  vector[num_bags] bag_latent = projection * inducing_noise + residual_scale .* bag_noise;
}}
model {{
  inducing_noise ~ std_normal();
  bag_noise ~ std_normal();
  {statement}
}}
"""
_LABELS = "array[num_bags] int<lower=0, upper=1> bag_label;"
_NUMBERS = "vector[num_bags] bag_target;"
_COUNTS = "array[num_bags] int<lower=0> bag_target;"


class StanProgram(NamedTuple):
    """A program in Stan's language, and its data.

    Attributes
    ----------
    program : str
    data : dict
        Numbers and nested lists, as JSON has them.

    Examples
    --------
    >>> import json
    >>> from pathlib import Path
    >>> from milzoo.references import StanProgram, entry_named, stan_program
    >>> def write(stan: StanProgram, name: str) -> None:
    ...     _ = Path(f"{name}.stan").write_text(stan.program)
    ...     _ = Path(f"{name}.json").write_text(json.dumps(stan.data))
    >>> write(stan_program(*entry_named("vwsgp-gaussian-simulated-9").problem()), "mine")
    >>> json.loads(Path("mine.json").read_text())["num_bags"]
    60
    """

    program: str
    data: dict[str, Any]


class _Observed(NamedTuple):
    """How a likelihood is written in Stan: declaration, statement, and its constants."""

    declared: str
    statement: str
    constants: dict[str, float]


@singledispatch
def _observed(likelihood: object) -> _Observed:
    raise NotImplementedError(
        f"likelihood is {type(likelihood).__name__}, which has no Stan program; expected Logistic, "
        "Probit, Gaussian, StudentT or NegativeBinomial"
    )


@_observed.register
def _(likelihood: Logistic) -> _Observed:
    return _Observed(_LABELS, "bag_label ~ bernoulli_logit(bag_latent);", {})


@_observed.register
def _(likelihood: Probit) -> _Observed:
    statement = "bag_label ~ bernoulli(Phi(bag_latent / sqrt(1 + noise)));"
    return _Observed(_LABELS, statement, {"noise": float(likelihood.noise)})


@_observed.register
def _(likelihood: Gaussian) -> _Observed:
    statement = "bag_target ~ normal(bag_latent, sqrt(noise));"
    return _Observed(_NUMBERS, statement, {"noise": float(likelihood.noise)})


@_observed.register
def _(likelihood: StudentT) -> _Observed:
    constants = {
        "degrees_of_freedom": float(likelihood.degrees_of_freedom),
        "scale": float(likelihood.scale),
    }
    statement = "bag_target ~ student_t(degrees_of_freedom, bag_latent, scale);"
    return _Observed(_NUMBERS, statement, constants)


@_observed.register
def _(likelihood: NegativeBinomial) -> _Observed:
    # Stan's second form has the mean, here r exp(s), and the precision r.
    statement = "bag_target ~ neg_binomial_2_log(log(total_count) + bag_latent, total_count);"
    return _Observed(_COUNTS, statement, {"total_count": float(likelihood.total_count)})


def stan_program(model: Model, bags: Bags) -> StanProgram:
    """Write a `VWSGP`, with numbers for its hyper-parameters, and its bags as a Stan program.

    The program is the full one, in whitened coordinates: its ``inducing_value`` has the posterior
    of the model's, and its ``bag_latent`` that of the sums of latent values.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or targets.

    Returns
    -------
    StanProgram

    Raises
    ------
    NotImplementedError
        If the model is not a `VWSGP`, has priors on hyper-parameters, or has a likelihood without
        a Stan program.

    Examples
    --------
    >>> from milzoo.references import entry_named, stan_program
    >>> model, bags = entry_named("vwsgp-gaussian-simulated-9").problem()
    >>> program, data = stan_program(model, bags)
    >>> print(program[program.index("model {"):])
    model {
      inducing_noise ~ std_normal();
      bag_noise ~ std_normal();
      bag_target ~ normal(bag_latent, sqrt(noise));
    }
    """
    if not isinstance(model, VWSGP) or model.priors:
        raise NotImplementedError(
            f"model is {type(model).__name__}{' with priors' if model.priors else ''}; expected "
            "VWSGP with numbers for its hyper-parameters: for others take "
            "milzoo.inference.flat_density, or milzoo.models.pymc.registry.pymc_program"
        )
    observed, site = _observed(model.likelihood), model.observed_site
    values = np.asarray(observations(model, bags, "stan_program"))
    if observed.declared != _NUMBERS:
        values = values.astype(int)
    with jax.enable_x64(True):
        sums = jax.tree.map(np.asarray, model.accumulated(bags))
    constants = "".join(f"  real<lower=0> {name};\n" for name in observed.constants)
    return StanProgram(
        _PROGRAM.format(
            observed=observed.declared, constants=constants, statement=observed.statement
        ),
        {
            "num_bags": bags.num_bags,
            "num_inducing": model.num_inducing,
            "cholesky": sums.cholesky.tolist(),
            "projection": sums.projection.tolist(),
            "residual_scale": sums.residual_scale.tolist(),
            site: values.tolist(),
            **observed.constants,
        },
    )
