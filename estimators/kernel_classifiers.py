"""Support vector classifiers on the cardinality kernel: weights from the model, or learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from joblib import Memory
from scipy.optimize import minimize
from sklearn.svm import SVC
from sklearn.utils.validation import check_memory

from ..datasets.arguments import POSITIVE, WHOLE
from ..datasets.bags import Bags
from ..inference.maximum_a_posteriori import maximum_a_posteriori
from ..inference.posterior import Status
from ..models.cardinality import CardinalityBags, CardinalityModel, probabilities
from ..models.numerics.threads import one_lapack_thread
from ..models.parts.cardinality_kernel import CardinalityKernel, check_numbers, joint_from
from ..models.parts.counting import CountTree
from ..models.parts.kernels import RBF
from .contract import BagClassifier

__all__ = [
    "CardinalityKernelLearner",
    "CardinalityKernelSVM",
    "KernelObjective",
    "learn_kernel",
    "train",
]

# Of the dual, whose value is the objective of the kernel.
_DUAL_TOLERANCE = 1e-6
# Largest gradient of T at the end, for a step of one unit of the prior's scale.
_FLAT = 1e-2
# A Laplace prior is smoothed within this fraction of its scale, as the paper advises.
_SMOOTHED = 1e-2


class CardinalityKernelSVM(BagClassifier):
    """MICPK-SVM: a support vector classifier on the kernel at a cardinality model's mode.

    Parameters
    ----------
    model : CardinalityModel
        With numbers as hyper-parameters.
    instance_kernel : RBF
        k_x, with numbers as parameters; its variance cancels.
    penalty : float
        C > 0 of the support vector classifier.
    memory : str, joblib.Memory or None
        Folder in which modes and kernels are kept: a search over C and the length scale of k_x
        then finds the mode once, and computes each kernel once.

    Attributes
    ----------
    kernel_ : CardinalityKernel
    bags_ : Bags
        The training bags.
    svc_ : SVC
        Of scikit-learn, on the kernel between them.
    status_ : Status
        How the search for the weights ended.
    objective_ : array (T,)
        T(θ) of the paper's equation 17 at each step of a `CardinalityKernelLearner`, else empty.
    classes_ : array (2,)
    n_features_in_ : int

    Notes
    -----
    The kernel between all B bags, of N instances, takes O(N²D) time, and the classifier O(B²) to
    O(B³). Published: 89 % accuracy on musk1, 88 on elephant, 63 on fox, by ten folds on which the
    settings were chosen too.

    References
    ----------
    Hajimirsadeghi and Mori (2017), section 4.1.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import CardinalityKernelSVM
    >>> from milzoo.models import RBF, CardinalityModel
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> model = CardinalityModel.for_bags(bags)
    >>> classifier = CardinalityKernelSVM(model, RBF(1.0, 1.0)).fit(bags)
    >>> classifier.predict(Bags.from_list([[[3.1], [0.0]], [[0.2], [0.0]]])).tolist()
    [1, 0]
    """

    _rules = {"penalty": POSITIVE}

    def __init__(
        self,
        model: CardinalityModel,
        instance_kernel: RBF,
        penalty: float = 1.0,
        memory: str | Memory | None = None,
    ) -> None:
        self.model = model
        self.instance_kernel = instance_kernel
        self.penalty = penalty
        self.memory = memory

    def _fit(self, bags: Bags) -> None:
        check_numbers(type(self).__name__, model=self.model, instance_kernel=self.instance_kernel)
        self.kernel_, self.status_, self.objective_ = self._find_kernel(bags)
        self.svc_ = train(self._kernel(bags, bags), np.asarray(bags.labels), self.penalty)
        self.bags_ = bags

    def _decision(self, bags: Bags) -> Float[np.ndarray, " P"]:
        return self.svc_.decision_function(self._kernel(bags, self.bags_))

    def _find_kernel(self, bags: Bags) -> tuple[CardinalityKernel, Status, Float[np.ndarray, " T"]]:
        """The kernel, how its search ended, and T at each step of it."""
        mode = check_memory(self.memory).cache(mode_of)
        weights, intercept, status = mode(self.model, bags)
        kernel = CardinalityKernel(self.model, weights, self.instance_kernel, intercept)
        return kernel, status, np.empty(0)

    def _kernel(self, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
        return check_memory(self.memory).cache(kernel_between)(self.kernel_, left, right)


class CardinalityKernelLearner(CardinalityKernelSVM):
    r"""MICPKL: weights of the kernel and the classifier on it, learned together.

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
        √(θ² + ε²) for ``|θ|``, ε a hundredth of its scale.
    instance_kernel : RBF
    penalty : float
        C.
    max_steps : int
    memory : str, joblib.Memory or None
        Folder in which modes and kernels are kept.

    Notes
    -----
    T is not convex: it has other minima than the one that is found. Its gradient jumps where a
    support vector comes or goes, and is only as accurate as α. A search may therefore end before
    the gradient vanishes; ``status_`` tells. The kernel between all instances is in memory, 8 N²
    bytes, and read once at every step. Published: 89 % accuracy on musk1, 89 on elephant, 71 on
    fox, by the same ten folds.

    References
    ----------
    Hajimirsadeghi and Mori (2017), Algorithm 1; it starts at random, and takes steps of one size.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> from milzoo.estimators import CardinalityKernelLearner
    >>> from milzoo.models import RBF, CardinalityModel
    >>> instances = [[0.0], [3.0]], [[2.9], [0.4]], [[0.1], [0.3]], [[-0.2], [0.5]]
    >>> bags = Bags.from_list(instances, labels=[1, 1, 0, 0])
    >>> model = CardinalityModel.for_bags(bags)
    >>> classifier = CardinalityKernelLearner(model, RBF(1.0, 1.0)).fit(bags)
    >>> bool(classifier.objective_[-1] < classifier.objective_[0])  # T(θ) falls
    True
    >>> classifier.predict(Bags.from_list([[[3.1], [0.0]], [[0.2], [0.0]]])).tolist()
    [1, 0]
    """

    _rules = {"penalty": POSITIVE, "max_steps": WHOLE}

    def __init__(
        self,
        model: CardinalityModel,
        instance_kernel: RBF,
        penalty: float = 1.0,
        max_steps: int = 100,
        memory: str | Memory | None = None,
    ) -> None:
        super().__init__(model, instance_kernel, penalty, memory)
        self.max_steps = max_steps

    def _find_kernel(self, bags: Bags) -> tuple[CardinalityKernel, Status, Float[np.ndarray, " T"]]:
        start, *_ = super()._find_kernel(bags)
        return learn_kernel(KernelObjective.of(start, bags, self.penalty), self.max_steps)


# joblib keeps results of functions by their arguments, and none of methods: hence these two.


def mode_of(model: CardinalityModel, bags: Bags) -> tuple[Float[np.ndarray, " D"], float, Status]:
    """Weights and intercept at the mode of the model, and how its search ended."""
    # One start, at the prior mean: nothing is random.
    mode = maximum_a_posteriori(model, bags, seed=0)
    sites = {name: value[0] for name, value in mode.stored_draws().items()}
    return sites["weights"], float(sites.get("intercept", 0.0)), mode.status


def kernel_between(kernel: CardinalityKernel, left: Bags, right: Bags) -> Float[np.ndarray, "P Q"]:
    """The kernel between each bag of the left and each of the right."""
    return kernel(left, right)


# ------------------------------------------------------------------ the objective


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LabelProblem:
    """Arrays behind the marginals of labels of padded bags, and the prior; none depends on θ.

    Attributes
    ----------
    tree : CountTree
    log_potential : array (2, N + B)
    design : array (N, P)
        The instances, and of a model with an intercept a column of ones.
    scale : array (P,)
        s, and that of the intercept: θ = s v.
    num_laplace : int
        Number of weights, from the first on, that have a Laplace prior.
    """

    tree: CountTree
    log_potential: Float[Array, "2 M"]
    design: Float[Array, "N P"]
    scale: Float[Array, " P"]
    num_laplace: int = jax.tree.static()


@jax.jit
def problem_of(
    model: CardinalityModel, instance_kernel: RBF, prepared: CardinalityBags
) -> tuple[LabelProblem, Float[Array, "N N"]]:
    """Prepare bags for a model; and k_x of all their instances."""
    bags = prepared.bags
    instances, num_features = jnp.asarray(bags.instances), bags.num_features
    scale = jnp.full(num_features, model.weight_scale)
    design = instances
    if model.intercept_scale is not None:
        design = jnp.column_stack([instances, jnp.ones(len(instances))])
        scale = jnp.append(scale, model.intercept_scale)
    problem = LabelProblem(
        tree=prepared.tree,
        log_potential=model.log_potential(prepared),
        design=design,
        scale=scale,
        num_laplace=num_features if model.weight_prior == "laplace" else 0,
    )
    return problem, instance_kernel.covariance(instances, instances)


@jax.jit
def label_probability(problem: LabelProblem, whitened: Float[Array, " P"]) -> Float[Array, " N"]:
    """P(y_n = 1 | X) at θ = s v."""
    logits = problem.design @ (problem.scale * whitened)
    return probabilities(problem.tree, logits, problem.log_potential)[1]


@jax.jit
def prior_and_pullback(
    problem: LabelProblem, whitened: Float[Array, " P"], derivative: Float[Array, " N"]
) -> tuple[Float[Array, ""], Float[Array, " P"]]:
    """r(θ), and the gradient in v of r plus a loss with this derivative in each P(y_n = 1 | X)."""
    loss, of_prior = jax.value_and_grad(log_prior_loss, argnums=1)(problem, whitened)
    _, pull_back = jax.vjp(lambda v: label_probability(problem, v), whitened)
    return loss, of_prior + pull_back(derivative)[0]


def log_prior_loss(problem: LabelProblem, whitened: Float[Array, " P"]) -> Float[Array, ""]:
    """The loss r(θ) of the prior."""
    laplace, normal = whitened[: problem.num_laplace], whitened[problem.num_laplace :]
    return jnp.sum(jnp.sqrt(laplace**2 + _SMOOTHED**2) - _SMOOTHED) + 0.5 * jnp.sum(normal**2)


@dataclass(frozen=True)
class KernelBetweenBags:
    """K between B bags, as a function of the marginals of labels, by one pass over k_x.

    BLAS takes each bag's rows where they lie. A compiled program would copy the N² numbers.

    Attributes
    ----------
    between : array (N, N)
        k_x of all instances.
    bags : Bags
    """

    between: Float[np.ndarray, "N N"]
    bags: Bags

    @cached_property
    def regardless(self) -> Float[np.ndarray, "B B"]:
        """Σ k_x over the instances of each two bags, whatever their labels."""
        ones = np.ones(self.bags.num_instances)
        return self._of_pairs(self._by_bag(ones), ones)

    def at(self, probability: Float[np.ndarray, " N"]) -> KernelAtLabels:
        """The kernel at these P(y_n = 1 | X)."""
        centred = probability - 0.5
        by_bag = self._by_bag(centred)
        joint = joint_from(self.regardless, self._of_pairs(by_bag, centred))
        own = np.sqrt(np.diagonal(joint))
        bag_index = np.asarray(self.bags.bag_index)
        return KernelAtLabels(joint / (own[:, None] * own), by_bag, own, bag_index)

    def _by_bag(self, weight: Float[np.ndarray, " N"]) -> Float[np.ndarray, "B N"]:
        """Σ_n w_n k_x(x_n, x_m) over the instances n of each bag, for every instance m."""
        found = np.empty((self.bags.num_bags, len(weight)))
        first = 0
        for bag, size in enumerate(self.bags.bag_sizes):
            rows = slice(first, first + size)
            np.matmul(weight[rows], self.between[rows], out=found[bag])
            first += size
        return found

    def _of_pairs(
        self, by_bag: Float[np.ndarray, "B N"], weight: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, "B B"]:
        sizes = self.bags.bag_sizes
        return np.add.reduceat(by_bag * weight, np.cumsum(sizes) - sizes, axis=1)


class KernelAtLabels(NamedTuple):
    """The kernel between bags at given marginals of labels, and what its derivatives need.

    Attributes
    ----------
    kernel : array (B, B)
        K, normalised (equation 16).
    by_bag : array (B, N)
        Σ_m (p_m − ½) k_x(x_m, x_n) over the instances m of each bag.
    own : array (B,)
        √k̃ of each bag with itself.
    bag_index : array (N,)
    """

    kernel: Float[np.ndarray, "B B"]
    by_bag: Float[np.ndarray, "B N"]
    own: Float[np.ndarray, " B"]
    bag_index: Int[np.ndarray, " N"]

    def derivative(self, signed: Float[np.ndarray, " B"]) -> Float[np.ndarray, " N"]:
        r"""Derivative of −½ aᵀKa in each p_n, with a = Yα fixed.

        With c_b = a_b / √k̃_bb and S = ``by_bag``, for an instance n of bag b

        .. math:: -2 \big(c_b (cᵀS)_n - a_b (Ka)_b S_{bn} / \tilde k_{bb}\big),

        where the second term is that of the normalisation.
        """
        bag, scaled = self.bag_index, signed / self.own
        of_own = self.by_bag[bag, np.arange(len(bag))]
        normalised = signed * (self.kernel @ signed) / self.own**2
        return -2.0 * (scaled[bag] * (scaled @ self.by_bag) - normalised[bag] * of_own)


@dataclass(frozen=True)
class KernelObjective:
    """T of equation 17 and its gradient, in units of the prior: θ = s v, θ₀ = s₀ v₀.

    Attributes
    ----------
    start : CardinalityKernel
    bags : Bags
    penalty : float
        C.
    problem : LabelProblem
        The marginals of labels as a function of v. Those of one shape are compiled once.
    between_bags : KernelBetweenBags
        The kernel between the bags as a function of the marginals.
    learned_from : array (B,)
        Which bags the classifier is trained on: α of the others is 0, and so is their part in T.
        Folds of a cross-validation then all have the same shapes.
    """

    start: CardinalityKernel
    bags: Bags
    penalty: float
    problem: LabelProblem
    between_bags: KernelBetweenBags
    learned_from: Bool[np.ndarray, " B"]

    @classmethod
    def of(
        cls,
        start: CardinalityKernel,
        bags: Bags,
        penalty: float,
        learned_from: Bool[np.ndarray, " B"] | None = None,
    ) -> Self:
        """Make the kernel between all instances, once; learn from all bags if none are named."""
        if learned_from is None:
            learned_from = np.ones(bags.num_bags, dtype=bool)
        num = bags.num_instances
        with jax.enable_x64(True):
            prepared = start.model.prepare(bags)
            problem, between = problem_of(start.model, start.instance_kernel, prepared)
            between_bags = KernelBetweenBags(np.asarray(between)[:num, :num], bags)
        return cls(start, bags, penalty, problem, between_bags, learned_from)

    def __call__(self, whitened: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        """T and ∂T/∂v, that of the dual at its optimal α, which is fixed."""
        num = self.bags.num_instances
        with jax.enable_x64(True):
            probability = np.asarray(label_probability(self.problem, whitened))
            at = self.between_bags.at(probability[:num])
            signed = self.signed_support(at.kernel)
            derivative = np.zeros_like(probability)
            derivative[:num] = at.derivative(signed)
            prior_loss, gradient = prior_and_pullback(self.problem, whitened, derivative)
        dual = np.abs(signed).sum() - 0.5 * signed @ at.kernel @ signed  # 1ᵀα = Σ|Yα|
        return float(dual) + float(prior_loss), np.asarray(gradient)

    def signed_support(self, kernel: Float[np.ndarray, "B B"]) -> Float[np.ndarray, " B"]:
        """Yα at the optimum of the dual on this kernel."""
        labels = np.asarray(self.bags.labels)
        svc = train(kernel, labels, self.penalty, self.learned_from)
        signed = np.zeros(self.bags.num_bags)
        signed[np.flatnonzero(self.learned_from)[svc.support_]] = svc.dual_coef_[0]
        return signed

    @property
    def origin(self) -> Float[np.ndarray, " P"]:
        """v of the kernel that the search starts at."""
        start = self.start
        has_intercept = start.model.intercept_scale is not None
        theta = np.append(start.weights, start.intercept) if has_intercept else start.weights
        return theta / np.asarray(self.problem.scale)

    def kernel_at(self, whitened: Float[np.ndarray, " P"]) -> CardinalityKernel:
        """The kernel with θ = s v."""
        theta = np.asarray(self.problem.scale) * whitened
        num = self.bags.num_features
        return replace(self.start, weights=theta[:num], intercept=float(theta[num:].sum()))


def learn_kernel(
    objective: KernelObjective, max_steps: int
) -> tuple[CardinalityKernel, Status, Float[np.ndarray, " T"]]:
    """Minimise T by L-BFGS.

    Parameters
    ----------
    objective : KernelObjective
    max_steps : int

    Returns
    -------
    CardinalityKernel
    Status
    array (T,)
        T at each step.
    """
    values: list[float] = []
    with one_lapack_thread():  # a step is many small calls of LAPACK
        found = minimize(
            objective,
            objective.origin,
            jac=True,
            method="L-BFGS-B",
            callback=lambda intermediate_result: values.append(intermediate_result.fun),
            options={"maxiter": max_steps, "gtol": _FLAT, "ftol": 1e-10},
        )
    gradient = float(np.abs(found.jac).max())
    sentence = f"T = {found.fun:,.4f} after {found.nit} steps of L-BFGS, gradient {gradient:.1g}"
    status = Status("converged", sentence)
    if gradient > _FLAT:
        status = Status("max_steps", f"{sentence}: {found.message}")
    return objective.kernel_at(found.x), status, np.array(values)


def train(
    kernel: Float[np.ndarray, "B B"],
    labels: Int[np.ndarray, " B"],
    penalty: float,
    learned_from: Bool[np.ndarray, " B"] | None = None,
) -> SVC:
    """Train a support vector classifier on a kernel between bags, all or some of them.

    Parameters
    ----------
    kernel : array (B, B)
    labels : array (B,)
    penalty : float
        C.
    learned_from : array (B,) or None

    Returns
    -------
    SVC
    """
    chosen = slice(None) if learned_from is None else learned_from
    svc = SVC(C=penalty, kernel="precomputed", tol=_DUAL_TOLERANCE)
    return svc.fit(kernel[chosen][:, chosen], labels[chosen])
