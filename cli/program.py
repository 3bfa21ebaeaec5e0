"""The commands of ``milzoo``: demo, compare, reproduce, reference, engines, models, datasets.

Nothing heavy is imported here: JAX starts inside the commands, when its devices are set up.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

__all__ = ["main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Bayesian multiple-instance learning: what each engine says, and how reliable it is.",
    epilog="With MILZOO_TRACEBACK=1 in the environment an error shows where it came from.",
)
reference = typer.Typer(no_args_is_help=True, help="Reference posteriors: list them, make one.")
app.add_typer(reference, name="reference")
engines_group = typer.Typer(no_args_is_help=True, help="Engines on the kept reference posteriors.")
app.add_typer(engines_group, name="engines")

# What bad data, settings and engines raise; ImportError where an extra is not installed.
_MISTAKES = (ValueError, TypeError, KeyError, OSError, RuntimeError, ImportError, MemoryError)

_INTERRUPTED_CODE = 130
_INTERRUPTED = (
    "interrupted: no report was written, and one that was there is as it was; the same command "
    "begins again, with the programs that were compiled"
)


def main() -> None:
    """Run the ``milzoo`` command line; an error is one line on standard error and exit code 2.

    Examples
    --------
    The shell command ``milzoo reproduce kandemir-2016/figure-1 --list`` from Python:

    >>> import sys
    >>> from contextlib import suppress
    >>> from unittest.mock import patch
    >>> from milzoo.cli import main
    >>> command = "milzoo reproduce kandemir-2016/figure-1 --list"
    >>> with patch.object(sys, "argv", command.split()), suppress(SystemExit):
    ...     main()
    Kandemir, Haußmann, Diego, Rajamani, van der Laak and Hamprecht (2016),
    Variational weakly supervised Gaussian processes, BMVC.
    kandemir-2016/figure-1: Tissue slides and fundus images. Not possible here: the
    diabetic-retinopathy and metastasis images
    """
    try:
        code = app(standalone_mode=False)
    except typer.Abort as error:  # Typer's word for an EOFError, and a RuntimeError
        _fail(f"a file that was read ended early: {error.__cause__}")
    except _MISTAKES as error:
        if os.environ.get("MILZOO_TRACEBACK"):
            raise
        _fail(_in_words(error))
    except typer.TyperException as error:
        _fail(error.format_message())  # empty where the help was shown instead
    if code == _INTERRUPTED_CODE:  # Typer's answer to Ctrl-C
        _fail(_INTERRUPTED, _INTERRUPTED_CODE)
    sys.exit(code if isinstance(code, int) else 0)


def _in_words(error: Exception) -> str:
    # str() of a KeyError has quotes around the sentence.
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text or type(error).__name__


def _fail(message: str, code: int = 2) -> NoReturn:
    if message:
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    force: Annotated[
        bool,
        typer.Option("--force", help="Write the report beside files of others, and over them."),
    ] = False,
) -> None:
    """Compare the usual engines of VGPMIL on bags of digits, and write a report.

    It needs no data folder: scikit-learn has the digits. The same by hand is
    milzoo compare vgpmil digits --set variance=5 --set length_scale=8 --set mean=-3 --out report
    """
    settings = ["variance=5", "length_scale=8", "mean=-3"]
    compare("vgpmil", "digits", settings=settings, out=out, force=force)


@app.command()
def compare(
    model: Annotated[str, typer.Argument(help="A model, as in `milzoo models`.")],
    data: Annotated[
        str, typer.Argument(help="A data set, as in `milzoo datasets`, or a table, FILE.csv.")
    ],
    engines: Annotated[
        str | None,
        typer.Option(
            help="Engines by name, separated by commas.",
            show_default="the usual ones of the model, all but pymc_nuts",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the model; repeatable."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**32 - 1, help="Of the split, of k-means and of every engine."),
    ] = 0,
    kernel_pca: Annotated[
        int | None,
        typer.Option(
            "--kernel-pca",
            min=1,
            metavar="COMPONENTS",
            help="Reduce the features by kernel PCA, fitted on the training bags.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a report.")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write the report beside files of others, and over them."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Only JSON on standard output.")] = False,
) -> None:
    """Fit a model by several engines and say how reliable each is.

    Trains on 70 % of the bags, standardised, and scores predictions on the others. Settings are
    the fields of the model and what it is made from, such as num_inducing=50, variance=0.5,
    length_scale=8, mean=-1, sharpness=100 or scale_mixture=gamma:1,2.5 of vgpmil,
    likelihood=probit or likelihood=student_t:4,0.5 of vwsgp, max_components=5 or
    covariance=diagonal of dpmil,
    potential=normal:0.5,0.1 or weight_prior=laplace of cardinality; with a Gamma scale
    mixture the logistic model is sampled too, if a sampler is among the engines.
    """
    _one_device_for_each_core()
    from ..datasets.writing import check_own_folder
    from ..inference import keep_programs
    from . import experiment, printing

    keep_programs()
    names = None
    if engines is not None:
        names = [name.strip() for name in engines.split(",") if name.strip()]
    plan = experiment.Plan.read(
        model, data, names, settings or [], seed=seed, kernel_pca=kernel_pca
    )
    if out is not None:
        check_own_folder(out, force=force)
    shown = printing.Display(quiet=json)
    comparison = experiment.run(plan, shown)
    if json:
        printing.print_json({"model": model, "data": data, "seed": seed, **comparison.metrics()})
    else:
        shown.comparison(comparison)
    if out is not None:
        images = experiment.images_of_test_bags(plan)
        origin = _command_line(plan.protocol)
        shown.report(comparison.save_report(out, origin=origin, force=force, **images))


def _command_line(protocol: str) -> str:
    return f"{shlex.join(['milzoo', *sys.argv[1:]])} ({protocol});"


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A table or figure such as castro-macias-2024/table-6, or a paper.",
            show_default="all papers",
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Only list tables and figures with their outcomes.")
    ] = False,
    protocol: Annotated[
        str | None,
        typer.Option(help="as-published or honest.", show_default="both"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method, as the paper calls it; repeatable.", show_default="all"),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="A data set; repeatable.", show_default="all")
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Folder with what is known, one CSV file for each table.")
    ] = Path("docs/results"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of splits and methods.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one on each core")
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy", help="Few bags and two splits; nothing is kept.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Run what is known again.")] = False,
    by_setting: Annotated[
        bool,
        typer.Option(
            "--by-setting", help="Only print every setting's scores on the reported test bags."
        ),
    ] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Only write the pages of the documentation anew.")
    ] = False,
) -> None:
    """Run a paper's tables again, and say what differs and why.

    A result is kept as soon as it is there, and not run again: a run that was stopped goes on.
    """
    from ..inference import keep_programs
    from . import reproducing

    keep_programs()
    wanted = reproducing.Wanted(
        name,
        folder,
        protocol,
        methods=tuple(method or ()),
        data=tuple(data or ()),
        seed=seed,
        jobs=jobs,
        toy=toy,
        again=again,
    )
    if list_all:
        reproducing.list_outcomes(wanted)
    elif pages:
        reproducing.write(wanted)
    elif by_setting:
        reproducing.print_settings(wanted)
    else:
        reproducing.run(wanted)


@reference.command("list")
def list_references() -> None:
    """List the reference posteriors: what is hard about each, and whether draws are kept."""
    from . import referencing

    referencing.list_entries()


@reference.command("make")
def make_references(
    names: Annotated[list[str], typer.Argument(help="As in `milzoo reference list`.")],
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of all samplers.")] = 0,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep it.", show_default="that of the package")
    ] = None,
) -> None:
    """Make reference posteriors again, from nothing; one that fails a gate is not kept."""
    _one_device_for_each_core()
    from ..inference import keep_programs
    from . import referencing

    keep_programs()
    if refused := referencing.make(names, seed, folder):
        raise ValueError(f"a gate was not passed by {', '.join(refused)}, and nothing kept of it")


@reference.command("stan")
def export_to_stan(
    names: Annotated[list[str], typer.Argument(help="As in `milzoo reference list`.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.stan and NAME.json.")],
) -> None:
    """Write reference posteriors as Stan programs, each with its data."""
    from . import referencing

    referencing.write_stan(names, out)


@reference.command("check")
def check_references(
    names: Annotated[list[str], typer.Argument(help="Of kept references.")],
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Another than that of the kept draws.")
    ] = 1,
) -> None:
    """Make reference posteriors once more, and compare their moments with those kept."""
    _one_device_for_each_core()
    from ..inference import keep_programs
    from . import referencing

    keep_programs()
    if different := referencing.check(names, seed):
        raise ValueError(f"not the same again: {', '.join(different)}")


@engines_group.command("benchmark")
def benchmark_engines(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Engines by name.", show_default="those of the league"),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Only references with this tag; repeatable.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of every engine.")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="References at a time.", show_default="one on each core"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all rows and a picture.", show_default="none")
    ] = None,
) -> None:
    """Run engines on all kept references: errors, joint distribution, seconds of one core."""
    from ..inference import keep_programs
    from . import referencing

    keep_programs()
    referencing.benchmark(names or [], tag or [], seed, jobs, out)


@app.command()
def models() -> None:
    """List the models."""
    from ..models.registry import models_by_name
    from . import printing

    printing.print_names("model", models_by_name())


@app.command()
def datasets() -> None:
    """List the data sets."""
    from ..datasets import available
    from . import printing

    printing.print_names("data set", available())


def _one_device_for_each_core() -> None:
    """Let chains run at once. This process is ours, and JAX has not started."""
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        cores = len(os.sched_getaffinity(0))  # those that this process may use
    except AttributeError:
        cores = os.cpu_count() or 1
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))
