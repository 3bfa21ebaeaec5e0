"""Support vector machines on the cardinality kernel: its weights from the model, or learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize
from sklearn.svm import SVC

from ..datasets.bags import Bags
from ..models.cardinality import CardinalityModel, probabilities
from ..models.cardinality_kernel import CardinalityKernel, check_numbers, joint_kernel
from ..models.kernels import RBF
from .chains import check_counts
from .maximum_a_posteriori import maximum_a_posteriori
from .posterior import Status

__all__ = ["CardinalityKernelClassifier", "CardinalityKernelLearner", "CardinalityKernelSVM"]

# Of the dual: its value is what the kernel is learned by.
_DUAL_TOLERANCE = 1e-6
# Largest slope of T at the end, for a step of one unit of the prior's scale.
_FLAT = 1e-2
# A Laplace prior is smoothed within this share of its scale, as the paper advises.
_SMOOTHED = 1e-2


@dataclass(frozen=True, eq=False)
class CardinalityKernelClassifier:
    """A support vector machine that has learned, on a cardinality kernel.

    Attributes
    ----------
    kernel : CardinalityKernel
    bags : Bags
        Those learned from.
    machine : SVC
        Of scikit-learn, on the kernel between them.
    status : Status
        How the search for the weights ended.
    objective : array (T,)
        T(θ) of the paper's equation 17 at each step of a `CardinalityKernelLearner`, else empty.
    """

    kernel: CardinalityKernel
    bags: Bags = field(repr=False)
    machine: SVC = field(repr=False)
    status: Status
    objective: Float[np.ndarray, " T"] = field(repr=False)

    def decision_function(self, bags: Bags) -> Float[np.ndarray, " P"]:
        """f(X) of each bag, above 0 if it is classified as positive.

        Parameters
        ----------
        bags : Bags
            Their labels are not used.

        Returns
        -------
        array (P,)
        """
        return self.machine.decision_function(self.kernel(bags, self.bags))

    def predict(self, bags: Bags) -> Int[np.ndarray, " P"]:
        """The label, 0 or 1, of each bag."""
        return (self.decision_function(bags) > 0).astype(int)


@dataclass(frozen=True)
class CardinalityKernelSVM:
    """MICPK-SVM: the mode of a cardinality model makes the kernel, then a machine is trained on it.

    Parameters
    ----------
    model : CardinalityModel
        With numbers as hyper-parameters.
    instance_kernel : RBF
        k_x, with numbers as parameters; its variance cancels.
    penalty : float
        C > 0 of the support vector machine.

    Raises
    ------
    ValueError
        If a parameter is out of range.

    References
    ----------
    Hajimirsadeghi and Mori (2017), section 4.1.
    """

    model: CardinalityModel
    instance_kernel: RBF
    penalty: float = 1.0

    def __post_init__(self) -> None:
        _check_penalty(type(self).__name__, self.penalty)
        check_numbers(type(self).__name__, self.model, self.instance_kernel)

    def fit(self, bags: Bags) -> CardinalityKernelClassifier:
        """Find the weights of the kernel, and train on it.

        Parameters
        ----------
        bags : Bags
            With both labels among them.

        Returns
        -------
        CardinalityKernelClassifier

        Raises
        ------
        ValueError
            If the bags have no labels, or one only.
        """
        _check_labels(bags, type(self).__name__)
        kernel, status, objective = self._find_kernel(bags)
        machine = _train(kernel(bags, bags), bags, self.penalty)
        return CardinalityKernelClassifier(kernel, bags, machine, status, objective)

    def _find_kernel(self, bags: Bags) -> tuple[CardinalityKernel, Status, Float[np.ndarray, " T"]]:
        """The kernel, how its search ended, and T at each step of it."""
        # One start, at the prior mean: nothing is random.
        mode = maximum_a_posteriori(self.model, bags, seed=0)
        sites = {name: value[0] for name, value in mode.stored_draws().items()}
        intercept = float(sites.get("intercept", 0.0))
        kernel = CardinalityKernel(self.model, sites["weights"], self.instance_kernel, intercept)
        return kernel, mode.status, np.empty(0)


@dataclass(frozen=True)
class CardinalityKernelLearner(CardinalityKernelSVM):
    r"""MICPKL: weights of the kernel and the machine on it, learned together.

    .. math:: \min_θ T(θ), \quad
        T(θ) = \max_α \big(1ᵀα - ½ αᵀ Y K_θ Y α\big) + r(θ), \quad Yᵀα = 0, \; 0 ≤ α ≤ C

    with r = −log of the prior of θ but for a constant. α at a given θ comes from scikit-learn;
    where α is at its best, ∂T/∂θ is the derivative at fixed α (Danskin), which automatic
    differentiation takes through the marginals P(y_n = 1 | X). L-BFGS starts at the mode of the
    cardinality model.

    Parameters
    ----------
    model : CardinalityModel
        With numbers as hyper-parameters. A Laplace prior is smoothed at 0, as the paper advises:
        √(θ² + ε²) for |θ|, ε a hundredth of its scale.
    instance_kernel : RBF
    penalty : float
        C.
    max_steps : int

    Raises
    ------
    ValueError
        If a parameter is out of range.

    Notes
    -----
    T has kinks where a support vector comes or goes, at which a search may stop, and other minima
    than the one that is found. The kernel between all instances is held at once: 8 N² bytes.

    References
    ----------
    Hajimirsadeghi and Mori (2017), Algorithm 1; it starts at random, and takes steps of one size.
    """

    max_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(max_steps=self.max_steps)

    def _find_kernel(self, bags: Bags) -> tuple[CardinalityKernel, Status, Float[np.ndarray, " T"]]:
        start, *_ = super()._find_kernel(bags)
        with jax.enable_x64(True):
            objective = KernelObjective.of(start, bags, self.penalty)
            values: list[float] = []
            found = minimize(
                objective,
                objective.origin,
                jac=True,
                method="L-BFGS-B",
                callback=lambda intermediate_result: values.append(intermediate_result.fun),
                options={"maxiter": self.max_steps, "gtol": _FLAT, "ftol": 1e-10},
            )
        kernel = objective.kernel_at(found.x)
        slope = float(np.abs(found.jac).max())
        sentence = f"T = {found.fun:,.4f} after {found.nit} steps of L-BFGS, slope {slope:.1g}"
        status = Status("converged", sentence)
        if slope > _FLAT:
            status = Status("max_steps", f"{sentence}: {found.message}")
        return kernel, status, np.array(values)


@dataclass(frozen=True)
class KernelObjective:
    """T of equation 17 and its slope, in units of the prior: θ = s v, θ₀ = s₀ v₀.

    Attributes
    ----------
    start : CardinalityKernel
    bags : Bags
    penalty : float
        C.
    kernel : callable
        v → K, compiled.
    rest : callable
        v, Yα → −½ αᵀYKYα + r(θ) with its slope in v, compiled.
    """

    start: CardinalityKernel
    bags: Bags
    penalty: float
    kernel: Callable[[Array], Array]
    rest: Callable[[Array, Array], tuple[Array, Array]]

    @classmethod
    def of(cls, start: CardinalityKernel, bags: Bags, penalty: float) -> Self:
        """Compile it; the kernel between instances does not hang on θ and is made once."""
        model, index, num = start.model, jnp.asarray(bags.bag_index), bags.num_bags
        between = start.instance_kernel.covariance(bags.instances, bags.instances)
        instances = jnp.asarray(bags.instances)
        tree = model.tree(bags)
        log_potential = model.log_potential(tree, bags)

        def kernel(white: Float[Array, " P"]) -> Float[Array, "B B"]:
            weights, intercept = _in_units(model, white)
            logits = instances @ weights + intercept
            share = probabilities(tree, logits, log_potential)[1]
            joint = joint_kernel(between, share, share, index, index, num, num)
            own = jnp.sqrt(jnp.diagonal(joint))
            return joint / (own[:, None] * own)

        def rest(white: Float[Array, " P"], signed: Float[Array, " B"]) -> Float[Array, ""]:
            return _log_prior_loss(model, white) - 0.5 * signed @ kernel(white) @ signed

        return cls(start, bags, penalty, jax.jit(kernel), jax.jit(jax.value_and_grad(rest)))

    def __call__(self, white: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        """T and ∂T/∂v, that of the dual at its best α held fixed."""
        machine = _train(np.asarray(self.kernel(jnp.asarray(white))), self.bags, self.penalty)
        signed = np.zeros(self.bags.num_bags)
        signed[machine.support_] = machine.dual_coef_[0]  # Yα
        value, slope = self.rest(jnp.asarray(white), jnp.asarray(signed))
        return float(np.abs(signed).sum() + value), np.asarray(slope)

    @property
    def origin(self) -> Float[np.ndarray, " P"]:
        """v of the kernel that the search starts at."""
        model, start = self.start.model, self.start
        white = start.weights / model.weight_scale
        if model.intercept_scale is None:
            return white
        return np.append(white, start.intercept / model.intercept_scale)

    def kernel_at(self, white: Float[np.ndarray, " P"]) -> CardinalityKernel:
        """The kernel with θ = s v."""
        weights, intercept = _in_units(self.start.model, white)
        return replace(self.start, weights=np.asarray(weights), intercept=float(intercept))


def _in_units(model: CardinalityModel, white: Any) -> tuple[Any, Any]:
    """θ and θ₀ of v."""
    if model.intercept_scale is None:
        return model.weight_scale * white, 0.0
    return model.weight_scale * white[:-1], model.intercept_scale * white[-1]


def _log_prior_loss(model: CardinalityModel, white: Float[Array, " P"]) -> Float[Array, ""]:
    """r(θ)."""
    if model.weight_prior == "normal":
        return 0.5 * white @ white
    num = white.shape[0] - (model.intercept_scale is not None)
    size = jnp.sqrt(white[:num] ** 2 + _SMOOTHED**2) - _SMOOTHED
    return jnp.sum(size) + 0.5 * jnp.sum(white[num:] ** 2)


def _train(kernel: Float[np.ndarray, "B B"], bags: Bags, penalty: float) -> SVC:
    return SVC(C=penalty, kernel="precomputed", tol=_DUAL_TOLERANCE).fit(kernel, bags.labels)


def _check_penalty(name: str, penalty: float) -> None:
    if not 0 < penalty < np.inf:
        raise ValueError(f"{name} penalty is {penalty}; expected a positive finite number")


def _check_labels(bags: Bags, name: str) -> None:
    if bags.labels is None or len(np.unique(bags.labels)) < 2:
        found = "no labels" if bags.labels is None else f"the label {bags.labels[0]} only"
        raise ValueError(f"bags have {found}; {name} needs bags of both labels to learn from")
