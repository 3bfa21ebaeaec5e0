"""The No-U-Turn sampler on a model's NumPyro program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float
from numpyro.handlers import reparam
from numpyro.infer import NUTS
from numpyro.infer.hmc import HMCState
from numpyro.infer.hmc_util import HMCAdaptState, build_adaptation_schedule
from numpyro.infer.util import constrain_fn

from ..datasets.arguments import check, check_probability
from ..datasets.bags import Bags
from ..models.model import Model, Program, observations, random_key
from ..models.numerics.draws import over_draws
from ..models.numerics.tracing import as_pytree
from .arguments import engine
from .gaussian import WhitenedProgram, whitened_draws, whitened_program
from .metric import (
    LARGEST_DENSE,
    MASS_MATRIX,
    FisherMoments,
    MassMatrix,
    curvature_and_misfit,
    curvature_metric,
    low_rank_metric,
)
from .modes import check_smooth
from .posterior import Posterior, sampled_posterior
from .runtime.chains import devices_of_chains, run_chains
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch

__all__ = ["NUTSChain", "nuts"]

# The whitened marginal posterior is close to a Gaussian: on digits this gives 1.6 times the
# effective draws per leapfrog step of the customary 0.8.
TARGET_ACCEPT = 0.7
# D of `curvature_and_misfit` up to which "auto" takes the curvature. With D = 0.03 (VWSGP on musk1)
# it has 1.4 times the smallest effective size a leapfrog step of a low-rank matrix, with D = 0.14
# (VGPMIL on digits) 0.9 times.
_LARGEST_MISFIT = 0.1
# Draws of a posterior from which chains choose where they begin.
_STARTS = 100
# Those whose warm-up is not divided as NumPyro does it, which tunes the step size in 50 steps after
# a last mass matrix: too few, so that acceptance ends 0.1 above its target.
_OWN_WINDOWS = ("low_rank", "laplace")
# Ends of the windows whose draws make a low-rank matrix, as parts of warm-up; the rest tunes the
# step size. Short ones are better than no matrix, and worse than the curvature.
_WINDOWS, _WINDOWS_AFTER_CURVATURE = (0.1, 0.2, 0.35, 0.6), (0.3, 0.6)


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
    mass_matrix: MassMatrix = "diagonal",
    target_accept: float = TARGET_ACCEPT,
    start: Posterior | None = None,
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
        The program with everything summed out that can be, or the paper's own with the latent
        function values as sites: the same posterior in many more dimensions.
    mass_matrix : {"diagonal", "dense", "low_rank", "laplace", "auto"}
        Whose inverse stands for the posterior's covariance. ``"diagonal"`` and ``"dense"``: the
        variances, or covariances, of the warm-up's draws. ``"low_rank"``: of draws and gradients,
        a diagonal corrected in few directions, as in nutpie. ``"laplace"``: the curvature at the
        mode of the marginal program, fixed, so that warm-up tunes the step size alone; the search
        for the mode is in ``wall_seconds``, and not in ``seconds``.
        ``"auto"``: the curvature, where a hundred draws of Laplace's approximation do not
        contradict it; else ``"low_rank"``, which has the curvature until draws say more; of more
        than 1,000 coordinates, where P² numbers a step cost more than they save, ``"diagonal"``.
        The tree says which, under ``sample_stats``, attribute ``mass_matrix``, and so does the
        status after ``"auto"``.
    target_accept : float
        Acceptance probability that the step size is tuned to.
    start : Posterior or None
        Of the same model and bags, by any engine. Chains of the marginal program begin at draws of
        it, twice as far from their mean; if left out, near the prior mean.
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
        If ``program`` or ``mass_matrix`` is unknown, the mass matrix is too large, is of a mode and
        the program has none or is not the marginal one; ``start`` has other sites, or the program
        is not the marginal one; the checkpoint is of another run, or chains cannot be dealt to the
        mesh.

    References
    ----------
    Hoffman and Gelman (2014); Phan, Pradhan and Jankowiak (2019), iterative NUTS; Seyboldt, Carlson
    and Carpenter (2026), low-rank mass matrices.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import nuts
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = nuts(model, bags, seed=0, num_warmup=200, num_samples=200)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    observations(model, bags, "nuts")
    key = random_key(seed)
    length = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    settings = {"program": program, "mass_matrix": mass_matrix, "target_accept": target_accept}
    starts = None if start is None else _dispersed(start, model, bags, program)
    options = {"engine": "nuts", "seed": key, "starts": starts, **settings}
    with (
        jax.enable_x64(True),
        devices_of_chains(mesh, checkpoint, model, bags, **options, **length) as run_on,
    ):
        chain = NUTSChain.for_model(model, bags, num_warmup=num_warmup, **settings)
        chain = replace(chain, starts=starts)
        run = run_chains(chain, key=key, progress=progress, **length, **run_on)
    posterior = sampled_posterior(model, bags, engine="nuts", run=run, watch=watch)
    posterior.tree["sample_stats"].attrs["mass_matrix"] = chain.mass_matrix
    if mass_matrix != "auto":
        return posterior
    sentence = f"{posterior.status.sentence}; mass matrix: {chain.mass_matrix}"
    return replace(posterior, status=replace(posterior.status, sentence=sentence))


def _dispersed(
    start: Posterior, model: Model, bags: Bags, program: str
) -> dict[str, Float[np.ndarray, "S ..."]]:
    """Draws of a posterior, twice as far from their mean, in whitened coordinates."""
    if program != "marginal":
        raise ValueError(
            f"start has sites of the marginal program, and program is {program!r}; leave one out"
        )
    draws = start.draws(_STARTS, seed=0)
    with jax.enable_x64(True):
        target_density = whitened_program(model, bags)
        expected = jax.eval_shape(target_density.constrain, np.asarray(target_density.origin))
        for name, site in expected.items():
            found = draws[name].shape[1:] if name in draws else "none"
            if found != site.shape:
                raise ValueError(
                    f"{name} of start has shape {found}; expected {site.shape}: pass a posterior "
                    "of the same model and bags"
                )
    vectors = whitened_draws(target_density, draws)
    centre = vectors.mean(axis=0)
    dispersed = centre + 2.0 * (vectors - centre)
    return over_draws(_unconstrained, {"vector": dispersed}, target_density)


def _unconstrained(site: dict[str, Array], target_density: WhitenedProgram) -> dict[str, Array]:
    return target_density.unconstrained(site["vector"])


class NUTSState(NamedTuple):
    """State of a chain.

    Attributes
    ----------
    trajectory : HMCState
        NumPyro's: where the chain is, its key, step size and mass matrix.
    moments : FisherMoments or None
        Of the window of warm-up that is under way, for a low-rank mass matrix.
    """

    trajectory: HMCState
    moments: FisherMoments | None


@as_pytree("program", "num_warmup", "target_accept", "mass_matrix")
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
    mass_matrix : {"diagonal", "dense", "low_rank", "laplace"}
    curvature_metric : array (P, P) or None
        The inverse mass matrix of ``"laplace"``, and that of ``"low_rank"`` up to the end of its
        first window.
    starts : dict of arrays or None
        Of whitened, unconstrained sites, from which a chain chooses its first state.
    """

    model: Model
    given: Any
    program: str
    num_warmup: int
    target_accept: float
    mass_matrix: str = "diagonal"
    curvature_metric: Float[Array, "P P"] | None = None
    starts: dict[str, Float[np.ndarray | Array, "S ..."]] | None = None

    @classmethod
    def for_model(
        cls,
        model: Model,
        bags: Bags,
        *,
        num_warmup: int,
        program: Literal["marginal", "full"] = "marginal",
        target_accept: float = TARGET_ACCEPT,
        mass_matrix: MassMatrix = "diagonal",
    ) -> Self:
        """Prepare the bags, and find the mode where the mass matrix is of one.

        Raises
        ------
        ValueError
            If the name of the program or the mass matrix is unknown, ``target_accept`` is no
            probability, the model has too many unknown numbers, or the mass matrix too many
            coordinates; or if "laplace" finds no curvature, or another program than the marginal.
        """
        check_number_of_unknowns(model, "nuts")
        check_probability(target_accept=target_accept)
        if program not in ("marginal", "full"):
            raise ValueError(f"program is {program!r}; expected 'marginal' or 'full'")
        chain = cls(model, model.prepare(bags), program, num_warmup, target_accept)
        return replace(chain, **chain._metric(bags, mass_matrix))

    def _metric(self, bags: Bags, mass_matrix: MassMatrix) -> dict[str, Any]:
        """The fields of a mass matrix: its name, "auto" resolved, and what it is at the start."""
        check("mass_matrix", mass_matrix, MASS_MATRIX)
        if mass_matrix == "diagonal":
            return {}
        size = self._num_coordinates(bags)
        if mass_matrix == "auto":
            return {} if size > LARGEST_DENSE else self._best_metric(bags)
        if size > LARGEST_DENSE:
            raise ValueError(
                f"mass_matrix is {mass_matrix!r}, of {size} coordinates; expected at most "
                f"{LARGEST_DENSE}: take 'diagonal', or program='marginal'"
            )
        if mass_matrix != "laplace":
            return {"mass_matrix": mass_matrix}
        if self.program != "marginal":
            raise ValueError(
                "mass_matrix is 'laplace', which is of the marginal program, and program is "
                f"{self.program!r}; take 'low_rank'"
            )
        target_density = jax.device_put(whitened_program(self.model, bags))
        check_smooth(target_density)
        return {"mass_matrix": "laplace", "curvature_metric": curvature_metric(target_density)}

    def _best_metric(self, bags: Bags) -> dict[str, Any]:
        """The curvature, where it describes the posterior; else what warm-up will learn."""
        if self.program != "marginal":
            return {"mass_matrix": "low_rank"}
        target_density = jax.device_put(whitened_program(self.model, bags))
        metric, misfit = curvature_and_misfit(target_density, jax.random.key(0))
        if float(misfit) <= _LARGEST_MISFIT:
            return {"mass_matrix": "laplace", "curvature_metric": metric}
        is_known = np.isfinite(metric).all()
        return {"mass_matrix": "low_rank", "curvature_metric": metric if is_known else None}

    def init(self, key: Array) -> NUTSState:
        """A start drawn near the origin of the whitened space, or from what was given."""
        chosen = None
        if self.starts is not None:
            key, own = jax.random.split(key)
            number = len(next(iter(self.starts.values())))
            index = jax.random.randint(own, (), 0, number)
            chosen = {name: jnp.asarray(site)[index] for name, site in self.starts.items()}
        start = self._started(self._kernel(), key, chosen)
        if self.mass_matrix in _OWN_WINDOWS:
            start = start._replace(adapt_state=self._in_last_window(start.adapt_state))
        size = len(ravel_pytree(start.z)[0])
        return NUTSState(
            start, FisherMoments.empty(size) if self.mass_matrix == "low_rank" else None
        )

    def step(self, state: NUTSState) -> NUTSState:
        """Run one trajectory of NUTS, and adapt the mass matrix where NumPyro does not."""
        kernel, (before, moments) = self._kernel(), state
        # A kernel learns its program when it starts; what else this computes is not used.
        self._started(kernel, before.rng_key)
        after = kernel.sample(before, (self.given,), {})
        if moments is None:
            return NUTSState(after, None)
        # Of −log p, but the sign of gradients does not matter.
        draw, gradient = ravel_pytree(after.z)[0], ravel_pytree(after.z_grad)[0]
        trajectory, moments = jax.lax.cond(
            self._ends_a_window(before.i),
            self._with_new_metric,
            lambda trajectory, moments: (trajectory, moments),
            *(after, moments.with_draw(draw, gradient)),
        )
        return NUTSState(trajectory, moments)

    def collect(self, state: NUTSState) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sites and statistics of a draw."""
        return self.sites(state), _statistics(state.trajectory)

    def sites(self, state: NUTSState) -> dict[str, Array]:
        """The model's own sites at a state."""
        values = constrain_fn(
            self._whitened(), (self.given,), {}, state.trajectory.z, return_deterministic=True
        )
        wanted = (*self.model.priors, *self.model.dims)
        observed = self.model.observed_site
        return {name: values[name] for name in wanted if name in values and name != observed}

    def _whitened(self) -> Program:
        program = self.model.marginal() if self.program == "marginal" else self.model
        return reparam(program, config=self.model.reparametrisation)

    def _kernel(self, metric: Float[Array, "P P"] | None = None) -> NUTS:
        adapts = self.mass_matrix in ("diagonal", "dense")
        return NUTS(
            self._whitened(),
            target_accept_prob=self.target_accept,
            inverse_mass_matrix=self.curvature_metric if metric is None else metric,
            dense_mass=self.mass_matrix != "diagonal",
            adapt_mass_matrix=adapts,
        )

    def _started(self, kernel: NUTS, key: Array, start: Any = None) -> HMCState:
        arguments = {"model_args": (self.given,), "model_kwargs": {}}
        return kernel.init(key, self.num_warmup, start, **arguments)

    def _num_coordinates(self, bags: Bags) -> int:
        if self.program == "marginal":
            return whitened_program(self.model, bags).size
        start = jax.eval_shape(lambda key: self._started(self._kernel(), key), jax.random.key(0))
        return sum(prod(site.shape) for site in start.z.values())

    def _ends_a_window(self, step: Array) -> Bool[Array, ""]:
        """Whether a step ends one of the windows that a low-rank mass matrix is learned in."""
        windows = _WINDOWS if self.curvature_metric is None else _WINDOWS_AFTER_CURVATURE
        return jnp.isin(step + 1, np.rint(np.multiply(windows, self.num_warmup)).astype(int))

    def _in_last_window(self, adaptation: HMCAdaptState) -> HMCAdaptState:
        """Skip to the last window of NumPyro's schedule: no reset then disturbs the step size."""
        last = len(build_adaptation_schedule(self.num_warmup)) - 1
        return adaptation._replace(window_idx=jnp.full_like(adaptation.window_idx, last))

    def _with_new_metric(
        self, before: HMCState, moments: FisherMoments
    ) -> tuple[HMCState, FisherMoments]:
        """The mass matrix that the window's moments say, a step size for it, and a new window."""
        key, own = jax.random.split(before.rng_key)
        kernel = self._kernel(low_rank_metric(moments))
        adaptation = self._started(kernel, own, before.z).adapt_state
        adaptation = adaptation._replace(window_idx=before.adapt_state.window_idx)
        after = before._replace(rng_key=key, adapt_state=adaptation)
        return after, FisherMoments.empty(len(moments.draws[0]))


def _statistics(state: HMCState) -> dict[str, Array]:
    """Sampler statistics under ArviZ's names."""
    return {
        "diverging": state.diverging,
        "energy": state.energy,
        "acceptance_rate": state.accept_prob,
        "n_steps": state.num_steps,
        "step_size": state.adapt_state.step_size,
    }
