"""The No-U-Turn sampler on a model's NumPyro program."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Self

import jax
from jax.sharding import Mesh
from jaxtyping import Array
from numpyro.handlers import reparam
from numpyro.infer import NUTS
from numpyro.infer.hmc import HMCState
from numpyro.infer.util import constrain_fn

from ..datasets.arguments import check_probability
from ..datasets.bags import Bags
from ..models.model import Model, Program, observations, random_key
from ..models.numerics.tracing import as_pytree
from .arguments import engine
from .posterior import Posterior, sampled_posterior
from .runtime.chains import devices_of_chains, run_chains
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

__all__ = ["NUTSChain", "nuts"]

# The whitened marginal posterior is close to a Gaussian: on digits this gives 1.6 times the
# effective draws per leapfrog step of the customary 0.8.
TARGET_ACCEPT = 0.7


@engine
def nuts(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    program: Literal["marginal", "full"] = "marginal",
    target_accept: float = TARGET_ACCEPT,
    mesh: Mesh | None = None,
    checkpoint: str | PathLike | None = None,
    progress: bool = False,
) -> Posterior:
    """Sample the exact posterior with NumPyro's NUTS, sites whitened.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    num_warmup, num_samples, num_chains : int
        Draws per chain; chains run at once, on all devices of the process.
    program : {"marginal", "full"}
        The program with everything summed out that can be, or the paper's own with the evidence
        as sites: same posterior, many more dimensions.
    target_accept : float
        Acceptance probability that the step size is tuned to.
    mesh : Mesh or None
        ``jax.make_mesh((num_devices,), ("bags",))``: devices that chains are dealt to, an equal
        number to each. Where these are of several processes (``jax.distributed.initialize()``),
        all pass the same bags (and a ``checkpoint`` each), each runs its own chains, and all get
        the draws of all: those that one process would have drawn.
    checkpoint : path or None
        A folder for what is finished, a file for every 100 draws. Run again with the same
        arguments, a run that was killed goes on behind the last of them and ends with the same
        draws as if it had not been.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior

    Raises
    ------
    ValueError
        If ``program`` is unknown, the checkpoint is of another run, or chains cannot be dealt to
        the mesh.

    References
    ----------
    Hoffman and Gelman (2014); Phan, Pradhan and Jankowiak (2019), iterative NUTS.
    """
    watch = Stopwatch()
    observations(model, bags, "nuts")
    key = random_key(seed)
    length = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    options = {"engine": "nuts", "seed": key, "program": program, "target_accept": target_accept}
    with (
        jax.enable_x64(True),
        devices_of_chains(mesh, checkpoint, model, bags, **options, **length) as run_on,
    ):
        chain = NUTSChain.for_model(
            model, bags, num_warmup=num_warmup, program=program, target_accept=target_accept
        )
        run = run_chains(chain, key=key, progress=progress, **length, **run_on)
    return sampled_posterior(model, bags, engine="nuts", run=run, watch=watch)


@as_pytree("program", "num_warmup", "target_accept")
@dataclass(frozen=True)
class NUTSChain:
    """One chain as pure functions of its state; warm-up adapts until ``num_warmup`` steps.

    Attributes
    ----------
    model : Model
    given : pytree
        The bags, as ``model.prepare`` makes them.
    program : {"marginal", "full"}
    num_warmup : int
    target_accept : float
    """

    model: Model
    given: Any
    program: str
    num_warmup: int
    target_accept: float

    @classmethod
    def for_model(
        cls,
        model: Model,
        bags: Bags,
        *,
        num_warmup: int,
        program: Literal["marginal", "full"] = "marginal",
        target_accept: float = TARGET_ACCEPT,
    ) -> Self:
        """Prepare the bags.

        Raises
        ------
        ValueError
            If the name of the program is unknown, ``target_accept`` is no probability, or the model
            has too many unknown numbers.
        """
        check_number_of_unknowns(model, "nuts")
        check_probability(target_accept=target_accept)
        if program not in ("marginal", "full"):
            raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")
        return cls(model, model.prepare(bags), program, num_warmup, target_accept)

    def init(self, key: Array) -> HMCState:
        """A start drawn near the origin of the whitened space."""
        arguments = {"model_args": (self.given,), "model_kwargs": {}}
        return self._kernel().init(key, self.num_warmup, None, **arguments)

    def step(self, state: HMCState) -> HMCState:
        """Run one trajectory of NUTS."""
        kernel = self._kernel()
        arguments = {"model_args": (self.given,), "model_kwargs": {}}
        # A kernel learns its program when it starts; what else this computes is not used.
        kernel.init(state.rng_key, self.num_warmup, None, **arguments)
        return kernel.sample(state, (self.given,), {})

    def collect(self, state: HMCState) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sites and statistics of a draw."""
        return self.sites(state), _statistics(state)

    def sites(self, state: HMCState) -> dict[str, Array]:
        """The model's own sites at a state."""
        values = constrain_fn(
            self._whitened(), (self.given,), {}, state.z, return_deterministic=True
        )
        wanted = (*self.model.priors, *self.model.dims)
        observed = self.model.observed_site
        return {name: values[name] for name in wanted if name in values and name != observed}

    def _whitened(self) -> Program:
        target = self.model.marginal() if self.program == "marginal" else self.model
        return reparam(target, config=self.model.reparametrisation)

    def _kernel(self) -> NUTS:
        return NUTS(self._whitened(), target_accept_prob=self.target_accept)


def _statistics(state: HMCState) -> dict[str, Array]:
    """Sampler statistics under ArviZ's names."""
    return {
        "diverging": state.diverging,
        "energy": state.energy,
        "acceptance_rate": state.accept_prob,
        "n_steps": state.num_steps,
        "step_size": state.adapt_state.step_size,
    }
