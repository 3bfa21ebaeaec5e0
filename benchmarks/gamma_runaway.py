"""Where a Gamma scale mixture leads on the digits: coordinate ascent beside exact samplers.

Any ψ but the hyperbolic secant makes another model, p(f) ∝ N(f) Π ψ(f_n)·2cosh(f_n/2). With a
Gamma scale mixture ψ falls like a power and 2cosh grows like e^{|f|/2}: it has a mode at f ≈ 0,
where coordinate ascent stops, and there are far higher ones at f = Q(½ sgn f − 2α/f), Q the prior
covariance of f. Two target densities, then: the ψ-model, and the logistic model that G
approximates.

    python benchmarks/gamma_runaway.py [--toy] [--seed 0] [--json PATH]
    python benchmarks/gamma_runaway.py --smc        # tempered SMC alone: for an accelerator
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")  # read when JAX starts

import jax
import jax.numpy as jnp
import numpy as np
from milzoo.datasets import Bags, load
from milzoo.inference import (
    Posterior,
    coordinate_ascent,
    gibbs,
    log_evidence,
    nuts,
    tempered_smc,
)
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.drivers import ascend_traced
from milzoo.inference.closed_form.sparse_gp import (
    InducingFactor,
    InducingStatistics,
    InstanceForm,
    InstanceRows,
)
from milzoo.models import VGPMIL, GammaScaleMixture
from milzoo.models.numerics.products import weighted_gram
from milzoo.models.parts.bag_labels import InstanceLabels
from scipy.special import expit
from sklearn.metrics import roc_auc_score


@dataclass(frozen=True)
class Sizes:
    """How much of everything: full, or toy."""

    num_bags: int
    num_inducing: int
    num_chains: int
    num_warmup: int
    num_samples: int
    num_draws: int
    num_particles: int
    sampled: tuple[tuple[float, float], ...]  # (α, β) that the samplers run on
    ascended: tuple[tuple[float, float], ...]


FULL = Sizes(
    num_bags=164,
    num_inducing=50,
    num_chains=4,
    num_warmup=300,
    num_samples=300,
    num_draws=300,
    num_particles=1000,
    sampled=((1.0, 1.0), (1.0, 2.5)),
    ascended=((1.0, 1.0), (1.0, 2.5), (0.5, 1.0), (0.5, 2.5)),
)
TOY = Sizes(
    num_bags=20,
    num_inducing=5,
    num_chains=2,
    num_warmup=50,
    num_samples=50,
    num_draws=50,
    num_particles=20,
    sampled=((1.0, 2.5),),
    ascended=((1.0, 2.5), (0.5, 2.5)),
)


@dataclass(frozen=True)
class Row:
    """One engine on one target density."""

    target_density: str
    engine: str
    mean_absolute_location: list[float]  # mean |E f_n|, by chain
    mean_absolute_latent: list[float]  # mean |f_n|, by chain
    fraction_positive: list[float]  # of f_n > 0, by chain
    instance_auc: float  # of E σ(f_n), all chains together; training bags
    elbo: float | None  # log evidence of tempered SMC
    seconds: float


def rows_of(model: VGPMIL, bags: Bags, sizes: Sizes, seed: int) -> Iterator[Row]:
    logistic = "the logistic model that G approximates"
    yield ascent_row(logistic, model, bags, sizes, seed)
    yield sampled_row(logistic, "gibbs", gibbs, model, bags, sizes, seed)
    yield sampled_row(logistic, "nuts", nuts, model, bags, sizes, seed)
    for alpha, beta in sizes.ascended:
        gamma = replace(model, scale_mixture=GammaScaleMixture(alpha, beta))
        target_density = f"the ψ-model, α = {alpha:g}, β = {beta:g}"
        yield ascent_row(target_density, gamma, bags, sizes, seed)
        yield far_ascent_row(target_density, gamma, bags, sizes, seed)
        if (alpha, beta) in sizes.sampled:
            yield sampled_row(target_density, "gibbs", gibbs, gamma, bags, sizes, seed)
            yield sampled_row(target_density, "nuts", nuts, gamma, bags, sizes, seed)
            yield sampled_row(
                target_density, "nuts, f as sites", nuts_full, gamma, bags, sizes, seed
            )


def smc_rows(model: VGPMIL, bags: Bags, sizes: Sizes, seed: int) -> Iterator[Row]:
    """Two runs from a start three, and thirty, times as wide as the prior."""
    options = {"seed": seed, "num_particles": sizes.num_particles, "num_chains": 2}
    for (alpha, beta), dispersion in product(sizes.sampled, (3.0, 30.0)):
        gamma = replace(model, scale_mixture=GammaScaleMixture(alpha, beta))
        posterior = tempered_smc(gamma, bags, dispersion=dispersion, **options)
        latent = latent_of(posterior, bags, seed)
        value = log_evidence(posterior, seed=seed).value
        target_density, name = (
            f"the ψ-model, α = {alpha:g}, β = {beta:g}",
            f"SMC, dispersion {dispersion:g}",
        )
        yield _row(target_density, name, latent, bags, posterior.seconds, value)


def nuts_full(model: VGPMIL, bags: Bags, **arguments) -> Posterior:
    return nuts(model, bags, program="full", **arguments)


def ascent_row(target_density: str, model: VGPMIL, bags: Bags, sizes: Sizes, seed: int) -> Row:
    """Coordinate ascent from q(u) = p(u), as the engine starts."""
    posterior = coordinate_ascent(model, bags, seed=seed, num_draws=sizes.num_draws)
    latent = latent_of(posterior, bags, seed)
    return _row(
        target_density, "ascent", latent, bags, posterior.seconds, float(posterior.elbo[-1])
    )


def far_ascent_row(target_density: str, model: VGPMIL, bags: Bags, sizes: Sizes, seed: int) -> Row:
    """The same ascent from tilts of ½ Σ_m k(x_n, x_m), all latent values negative."""
    started = time.perf_counter()
    with jax.enable_x64(True):
        form = closed_form(model, Options("exact")).in_memory(bags)
        q, bound = _ascend_from_far_out(form, bags)
        fitted = form.approximation(q, None, bags, np.asarray(bound))
    draws = fitted.draws(model, bags, jax.random.key(seed), sizes.num_draws)
    latent = given_inducing_values(model, bags, draws["inducing_value"][None], seed)
    seconds = time.perf_counter() - started
    return _row(target_density, "ascent from far out", latent, bags, seconds, float(bound))


@jax.jit
def _ascend_from_far_out(form: InstanceForm, bags: Bags) -> tuple[InducingFactor, jax.Array]:
    """q(u) and the ELBO after 200 steps."""
    rows = form.prepare(bags)
    far = 0.5 * (rows.rows @ rows.rows.sum(axis=0) + rows.residual_variance)
    statistics = _statistics_at(form.model, rows, far)
    return ascend_traced(form, rows, statistics, None, max_steps=200, tolerance=-1.0)[:2]


def _statistics_at(model: VGPMIL, rows: InstanceRows, tilt: jax.Array) -> InducingStatistics:
    """Statistics under these tilts, labels being exact under latent values of −tilt."""
    labels = InstanceLabels(
        -tilt, rows.bag_index, rows.bag_label, model.sharpness, len(rows.bag_label)
    ).mean
    theta = model.scale_mixture.expected_precision(tilt)
    linear_term = (labels - 0.5 - theta * model.mean) @ rows.rows
    return InducingStatistics(weighted_gram(rows.rows, theta), linear_term, jnp.zeros(()))


def sampled_row(
    target_density: str,
    name: str,
    engine: Callable[..., Posterior],
    model: VGPMIL,
    bags: Bags,
    sizes: Sizes,
    seed: int,
) -> Row:
    keep = {"keep": ("inducing_value", "latent")} if engine is gibbs else {}
    posterior = engine(
        model,
        bags,
        seed=seed,
        num_warmup=sizes.num_warmup,
        num_samples=sizes.num_samples,
        num_chains=sizes.num_chains,
        **keep,
    )
    return _row(
        target_density, name, latent_of(posterior, bags, seed), bags, posterior.seconds, None
    )


# --------------------------------------------------------------------- the latent values of draws


def latent_of(posterior: Posterior, bags: Bags, seed: int) -> np.ndarray:
    """Draws (chain, draw, N) of the latent values of the training bags.

    Where it was summed out it is drawn back: exactly for NUTS on the logistic model; from p(f | u)
    for coordinate ascent, whose q that is, and for NUTS on the ψ-model, where |f| comes out too
    small by at most k̃_n/2.
    """
    draws, model = posterior.tree["posterior"], posterior.model
    if "latent" in draws:
        return draws["latent"].to_numpy()
    inducing_values = draws["inducing_value"].to_numpy()
    if posterior.is_mcmc and model.is_logistic:
        flat = {"inducing_value": inducing_values.reshape(-1, inducing_values.shape[-1])}
        completed = model.complete(flat, bags, seed=seed)["latent"]
        return completed.reshape(*inducing_values.shape[:2], -1)
    return given_inducing_values(model, bags, inducing_values, seed)


def given_inducing_values(
    model: VGPMIL, bags: Bags, inducing_values: np.ndarray, seed: int
) -> np.ndarray:
    """One draw of p(f | u) for each u; (chain, draw, M) → (chain, draw, N)."""
    with jax.enable_x64(True):
        conditional = model.conditional(bags)
        location = jax.vmap(jax.vmap(conditional.mean))(jnp.asarray(inducing_values))
        noise = np.random.default_rng(seed).standard_normal(location.shape)
        return np.asarray(model.mean + location + jnp.sqrt(conditional.residual_variance) * noise)


# --------------------------------------------------------------------- the table


def _row(
    target_density: str,
    engine: str,
    latent: np.ndarray,
    bags: Bags,
    seconds: float,
    bound: float | None,
) -> Row:
    return Row(
        target_density,
        engine,
        np.abs(latent.mean(axis=1)).mean(axis=1).tolist(),
        np.abs(latent).mean(axis=(1, 2)).tolist(),
        (latent > 0).mean(axis=(1, 2)).tolist(),
        float(roc_auc_score(bags.instance_labels, expit(latent).mean(axis=(0, 1)))),
        bound,
        seconds,
    )


def print_table(rows: list[Row]) -> None:
    header = f"{'':<22}{'mean |E f|':>24}{'mean |f|':>24}{'fraction of f > 0':>24}"
    header += f"{'inst. AUC':>11}{'ELBO':>10}{'seconds':>9}"
    target_density = None
    for row in rows:
        if row.target_density != target_density:
            target_density = row.target_density
            print(f"\n{target_density}\n{header}")
        by_chain = (row.mean_absolute_location, row.mean_absolute_latent, row.fraction_positive)
        bound = "" if row.elbo is None else f"{row.elbo:.0f}"
        print(
            f"{row.engine:<22}"
            + "".join(f"{_by_chain(values):>24}" for values in by_chain)
            + f"{row.instance_auc:>11.3f}{bound:>10}{row.seconds:>9.1f}"
        )


def _by_chain(values: list[float]) -> str:
    return " ".join(f"{value:.0f}" if value >= 20 else f"{value:.2f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="few bags, few draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write protocol and rows")
    parser.add_argument("--smc", action="store_true", help="tempered SMC alone")
    options = parser.parse_args()
    sizes = TOY if options.toy else FULL
    bags = load("digits").standardize()
    bags = bags.select(np.arange(sizes.num_bags))
    model = VGPMIL.for_bags(bags, sizes.num_inducing, 0.5, 8.0, seed=options.seed, mean=0.0)
    rows = list((smc_rows if options.smc else rows_of)(model, bags, sizes, options.seed))
    print_table(rows)
    print(
        f"\ndigits, {bags.num_bags} bags standardised, training bags scored; v = 0.5, ℓ² = 64, "
        f"M = {sizes.num_inducing}, H = 100; {sizes.num_chains} chains × ({sizes.num_warmup} + "
        f"{sizes.num_samples}), one number for each; seed {options.seed}; {os.cpu_count()} cores; "
        "seconds without compilation."
    )
    if options.json:
        result = {
            "protocol": asdict(sizes) | {"seed": options.seed, "cores": os.cpu_count()},
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
