"""Simulate data from a model's prior, to test an engine where the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from .arguments import check_counts, checked_seed
from .bags import Bags
from .checks import read_only

__all__ = ["draw_sites", "simulate", "simulate_instances"]


def simulate(
    model: Callable[[Bags], Any], bags: Bags, *, seed: int | Array
) -> tuple[Bags, dict[str, np.ndarray]]:
    """Simulate bag labels or targets from the prior of a NumPyro program; return all its sites.

    θ ~ p(θ), T ~ p(T | θ, X) at the instances X of ``bags``, whose own labels are ignored. A
    program of targets draws Y instead. A program of instances, such as DPMIL's, draws T ~ p(T) and
    X ~ p(X | θ, T), and uses only the sizes of the bags.

    Parameters
    ----------
    model : callable
        A NumPyro program of ``Bags`` with a sample site ``bag_label`` (or ``bag_target``) of shape
        (B,), observed only when ``bags.labels`` (``bags.targets``) is not None; so is a site
        ``instances`` of shape (N, D), if it has one.
    bags : Bags
        The design: their grouping is kept, and so are their instances if the program draws none.
    seed : int or JAX key
        Seed of the draw.

    Returns
    -------
    bags : Bags
        With the drawn labels or targets and instances, and no instance labels (the old ones would
        not match; those of the program are among the sites, if it has any).
    sites : dict of str to array
        The values of all sample and deterministic sites, ``bag_label`` among them.

    Raises
    ------
    ValueError
        If the program has neither site, or ``bag_label`` is not one label 0 or 1 for each bag.
    NotImplementedError
        If the program has a factor: forward simulation ignores it.

    Examples
    --------
    >>> from milzoo.datasets import simulate, simulate_instances
    >>> from milzoo.models import VWSGP
    >>> design = simulate_instances(num_bags=20, bag_size=5, num_features=2, seed=0)
    >>> bags, sites = simulate(VWSGP.for_bags(design, num_inducing=4), design, seed=0)
    >>> bags
    Bags(20 bags (7 positive, 13 negative) of 5 to 5 instances, 100 instances of 2 features)
    >>> sites["inducing_value"].shape
    (4,)
    """
    unlabelled = bags.without_labels()
    with jax.enable_x64(True):
        drawn_sites = draw_sites(model, unlabelled, seed)
    sites = {name: np.asarray(value) for name, value in drawn_sites.items()}
    if "bag_target" in sites:
        return unlabelled.with_targets(sites["bag_target"]), sites
    if "bag_label" not in sites:
        raise ValueError(
            f"model has sites {sorted(sites)}; expected 'bag_label' or 'bag_target' among them"
        )
    labels = sites["bag_label"]
    if labels.shape != (bags.num_bags,) or not np.isin(labels, (0, 1)).all():
        raise ValueError(
            f"model draws 'bag_label' of shape {labels.shape} with values "
            f"{np.unique(labels).tolist()}; expected one label 0 or 1 for each of "
            f"{bags.num_bags} bags"
        )
    drawn = replace(unlabelled, labels=read_only(labels.astype(np.int64)))
    if "instances" in sites:
        drawn = replace(drawn, instances=read_only(sites["instances"]))
    return drawn, sites


def draw_sites(model: Callable[[Any], Any], unlabelled: Any, seed: int | Array) -> dict[str, Array]:
    """Draw all sites of a NumPyro program for bags without labels; JAX may trace it.

    Parameters
    ----------
    model : callable
    unlabelled : Bags or pytree
        Bags without labels, or what the model's ``prepare`` makes of them.
    seed : int or JAX key

    Returns
    -------
    dict of str to array
        The values of all sample and deterministic sites.

    Raises
    ------
    NotImplementedError
        If the program has a factor: forward simulation ignores it.
    """
    from numpyro import handlers
    from numpyro.distributions import Unit

    trace = handlers.trace(handlers.seed(model, seed)).get_trace(unlabelled)
    factors = [name for name, site in trace.items() if isinstance(site.get("fn"), Unit)]
    if factors:
        raise NotImplementedError(
            f"the program has a factor ({', '.join(factors)}), which forward simulation ignores: "
            "the draws would have another distribution; expected a program without factors, such "
            "as the one with the logistic observation"
        )
    return {
        name: jax.numpy.asarray(site["value"])
        for name, site in trace.items()
        if site["type"] in ("sample", "deterministic")
    }


def simulate_instances(
    num_bags: int, bag_size: int | range, num_features: int, *, seed: int
) -> Bags:
    """Unlabelled bags of standard normal instances, x_nd ~ N(0, 1): a design for `simulate`.

    Parameters
    ----------
    num_bags : int
        B.
    bag_size : int or range
        Instances in each bag; from a range, such as ``range(1, 41)``, drawn uniformly for each.
    num_features : int
        D.
    seed : int
        Seed of the draw.

    Returns
    -------
    Bags

    Raises
    ------
    ValueError
        If one of the numbers is below 1.

    Examples
    --------
    >>> from milzoo.datasets import simulate_instances
    >>> simulate_instances(num_bags=3, bag_size=range(1, 5), num_features=2, seed=0).bag_sizes
    array([4, 3, 3])
    """
    check_counts(num_bags=num_bags, num_features=num_features)
    if isinstance(bag_size, range):
        if not bag_size or min(bag_size) < 1:
            raise ValueError(f"bag_size is {bag_size}; expected sizes of at least 1")
    else:
        check_counts(bag_size=bag_size)
    possible = np.array(bag_size if isinstance(bag_size, range) else [bag_size])
    random = np.random.default_rng(checked_seed(seed))
    sizes = random.choice(possible, size=num_bags)
    return Bags.from_arrays(
        random.standard_normal((sizes.sum(), num_features)), np.repeat(np.arange(num_bags), sizes)
    )
