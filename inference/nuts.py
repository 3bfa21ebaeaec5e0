"""The No-U-Turn sampler on a model's NumPyro program."""

from __future__ import annotations

from typing import Literal

import jax
from jaxtyping import Array
from numpyro.handlers import reparam
from numpyro.infer import NUTS
from numpyro.infer.hmc import HMCState
from numpyro.infer.util import constrain_fn

from ..datasets.bags import Bags
from .chains import run_chains
from .posterior import Posterior, random_key, sampled_posterior

__all__ = ["nuts"]


def nuts(
    model,
    bags: Bags,
    *,
    seed: int | Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    program: Literal["marginal", "full"] = "marginal",
    target_accept: float = 0.8,
    progress: bool = False,
) -> Posterior:
    """Sample the exact posterior with NumPyro's NUTS, sites whitened.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels.
    seed : int or JAX key
    num_warmup, num_samples, num_chains : int
        Draws per chain; chains run at once, on all devices.
    program : {"marginal", "full"}
        The program with everything summed out that can be, or the paper's own with the evidence
        as sites: same posterior, many more dimensions.
    target_accept : float
        Acceptance probability that the step size is tuned to.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior

    References
    ----------
    Hoffman and Gelman (2014); Phan, Pradhan and Jankowiak (2019), iterative NUTS.
    """
    if program not in ("marginal", "full"):
        raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")
    key = random_key(seed)
    with jax.enable_x64(True):
        target = reparam(
            model.marginal() if program == "marginal" else model, config=model.reparametrisation
        )
        kernel = NUTS(target, target_accept_prob=target_accept)

        def init(chain_key: Array) -> HMCState:
            return kernel.init(chain_key, num_warmup, None, model_args=(bags,), model_kwargs={})

        def step(state: HMCState) -> HMCState:
            return kernel.sample(state, (bags,), {})

        def collect(state: HMCState) -> tuple[dict[str, Array], dict[str, Array]]:
            values = constrain_fn(target, (bags,), {}, state.z, return_deterministic=True)
            kept = {name: values[name] for name in model.dims if name in values}
            kept |= {name: values[name] for name in model.priors}
            return kept, _statistics(state)

        run = run_chains(
            init,
            step,
            collect,
            key=key,
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            progress=progress,
        )
    return sampled_posterior(model, bags, engine="nuts", run=run)


def _statistics(state: HMCState) -> dict[str, Array]:
    """Sampler statistics under ArviZ's names."""
    return {
        "diverging": state.diverging,
        "energy": state.energy,
        "acceptance_rate": state.accept_prob,
        "n_steps": state.num_steps,
        "step_size": state.adapt_state.step_size,
    }
