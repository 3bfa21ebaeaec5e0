"""The command line: what it prints, and that every mistake is one line and exit code 2."""

import gzip
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from milzoo.cli import main, referencing
from milzoo.cli.experiment import Plan
from milzoo.datasets import simulate_instances
from milzoo.inference import ENGINES, coordinate_ascent, nuts
from milzoo.models import (
    RBF,
    VGPMIL,
    GammaScaleMixture,
    Gaussian,
    NegativeBinomial,
    Probit,
    StudentT,
)
from milzoo.papers import PAPERS
from milzoo.references import ENTRIES, LEAGUE, Gate, load_reference

SMALL_REFERENCE = "vwsgp-gaussian-simulated-9"
LONGEST = max(ENTRIES, key=len)
SMALL = ("--set", "num_inducing=5", "--engines", "coordinate_ascent")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; its exit code, standard output and standard error."""

    def run(*arguments, columns="100"):
        monkeypatch.setattr(sys, "argv", ["milzoo", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.mark.in_ci
def test_compare_prints_a_table_that_fits_and_a_sentence(run, tmp_path):
    code, out, _ = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path / "report")
    assert code == 0
    assert max(map(len, out.splitlines()[:-1])) <= 100
    for words in ("PSIS k̂", "log loss", "k̂ =", "115 bags to train on, 49 to test on"):
        assert words in out
    assert (tmp_path / "report" / "report.html").exists()


def test_demo_plans_what_the_readme_says(run, monkeypatch, tmp_path):
    """Nothing is fitted: the comparison ends as it begins."""
    plans = []

    def planned(plan, display):
        plans.append(plan)
        raise ValueError("planned, not run")

    monkeypatch.setattr("milzoo.cli.experiment.run", planned)
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    (by_hand,) = re.findall(r"`milzoo demo` is `milzoo (compare .*?) --out report`", readme)
    assert run("demo", "--out", tmp_path / "report")[2] == "error: planned, not run\n"
    run(*shlex.split(by_hand))
    assert plans[0] == plans[1]
    assert list(plans[0].engines) == list(VGPMIL.usual_engines)


@pytest.mark.slow
def test_demo_writes_its_report(run, tmp_path):
    code, out, err = run("demo", "--out", tmp_path / "report")
    assert code == 0, err
    assert "coordinate_ascent's mean has an error of" in " ".join(out.split())
    assert "milzoo demo --out" in (tmp_path / "report" / "report.html").read_text("utf-8")


@pytest.mark.in_ci
def test_json_option_prints_json_alone(run):
    code, out, err = run("compare", "vgpmil", "digits", *SMALL, "--json", "--seed", 3)
    content = json.loads(out)
    assert code == 0 and err == ""
    assert content["model"] == "vgpmil" and content["data"] == "digits" and content["seed"] == 3
    assert 0 < content["engines"]["coordinate_ascent"]["log_loss"] < 2
    assert content["engines"]["coordinate_ascent"]["rhat"] is None


@pytest.mark.slow
def test_another_likelihood_is_a_setting_and_has_no_companion(run):
    """No sampler of another model is run."""
    probit = ("--set", "likelihood=probit", "--set", "num_inducing=5")
    engines = ("--engines", "coordinate_ascent,laplace")
    code, out, _ = run("compare", "vwsgp", "digits", *probit, *engines, "--json")
    assert code == 0
    rows = json.loads(out)["engines"]
    assert set(rows) == {"coordinate_ascent", "laplace"}
    for row in rows.values():
        assert 0 < row["log_loss"] < 2 and "target_density" not in row


@pytest.mark.slow
def test_ones_own_data_may_have_targets(run, monkeypatch, tmp_path):
    design = simulate_instances(12, 3, 2, seed=0)
    frame = design.with_targets(np.linspace(-1, 1, 12)).to_frame()
    frame.to_csv(tmp_path / "mine.csv.gz", index=False)
    monkeypatch.setenv("MILZOO_DATA", str(tmp_path))
    code, out, _ = run("compare", "vwsgp", "mine", *SMALL, "--set", "likelihood=gaussian", "--json")
    assert code == 0
    row = json.loads(out)["engines"]["coordinate_ascent"]
    assert row["rmse"] > 0 and row["khat"] == "-inf"


def test_settings_are_arguments_of_the_model():
    texts = ["num_inducing=7", "length_scale=3", "mean=-1.5", "scale_mixture=gamma:1,2.5"]
    plan = Plan.read("vgpmil", "digits", ["nuts"], texts, seed=0)
    model = plan.model.for_bags(simulate_instances(10, 3, 2, seed=0), **plan.settings)
    assert model.inducing_points.shape == (7, 2)
    assert model.kernel == RBF(variance=5.0, length_scale=3.0)
    assert model.mean == -1.5 and model.scale_mixture == GammaScaleMixture(1.0, 2.5)


@pytest.mark.parametrize(
    ("texts", "likelihood"),
    [
        (["likelihood=probit"], Probit()),
        (["likelihood=gaussian:0.5"], Gaussian(0.5)),
        (["likelihood=student_t:3,0.5"], StudentT(3.0, 0.5)),
        (["likelihood=negative_binomial:2"], NegativeBinomial(2)),
    ],
)
def test_likelihoods_are_set_by_word_and_numbers(texts, likelihood):
    plan = Plan.read("vwsgp", "digits", ["nuts"], texts, seed=0)
    assert plan.settings == {"likelihood": likelihood}


@pytest.mark.slow
def test_the_seed_decides_everything(run):
    def measured(seed):
        out = run("compare", "vgpmil", "digits", *SMALL, "--json", "--seed", seed)[1]
        row = json.loads(out)["engines"]["coordinate_ascent"]
        return {name: value for name, value in row.items() if "seconds" not in name}

    assert measured(0) == measured(0) != measured(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "vgpmi", "digits"), "unknown model 'vgpmi'; did you mean 'vgpmil'?"),
        (("compare", "vgpmil", "digit"), "unknown data set 'digit'; did you mean 'digits'?"),
        (
            ("compare", "vgpmil", "digits", "--engines", "nut"),
            "unknown engine 'nut'; did you mean 'nuts'?",
        ),
        (("compare", "vgpmil", "digits", "--engines", ","), "no engines; expected some of"),
        (
            ("compare", "vgpmil", "digits", "--set", "num_induce=5"),
            "unknown setting 'num_induce' of vgpmil; did you mean 'num_inducing'?",
        ),
        (
            ("compare", "vgpmil", "digits", "--set", "num_inducing=5.5"),
            "num_inducing is '5.5'; expected a whole number",
        ),
        (("compare", "vgpmil", "digits", "--set", "mean=low"), "mean is 'low'; expected a number"),
        (("compare", "vgpmil", "digits", "--set", "mean"), "has no '='; expected NAME=VALUE"),
        (
            ("compare", "vgpmil", "digits", "--set", "scale_mixture=gamma:1"),
            "setting scale_mixture is 'gamma:1'; expected polya_gamma, or gamma:ALPHA,BETA",
        ),
        (
            ("compare", "vwsgp", "digits", "--set", "likelihood=probitt"),
            "setting likelihood is 'probitt'; did you mean 'probit'?",
        ),
        (
            ("compare", "vwsgp", "digits", "--set", "likelihood=gaussian"),
            "the bags of digits have labels only; use other settings, data of your own",
        ),
        (("compare", "vgpmil", "digits", "--set", "variance=-1"), "RBF variance is -1.0; expected"),
        (("compare", "vgpmil", "digits", "--set", "num_inducing=9999"), "num_inducing is 9999"),
        (("compare", "vgpmil"), "Missing argument"),
        (("compare", "vgpmil", "digits", "--sed", "1"), "No such option"),
        (("compare", "vgpmil", "digits", "--seed", "one"), "Invalid value for '--seed'"),
        (
            ("compare", "vgpmil", "digits", "--seed", "-1"),
            "Invalid value for '--seed': Input should be greater",
        ),
        (("compare", "vgpmil", "digits", "--seed", 2**32), "Invalid value for '--seed'"),
        (("compar",), "No such command 'compar'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert err.startswith("error: ") and message in err
    assert err.count("\n") == 1
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id,bag_label,x0", "mine.csv.gz: the frame has no column 'bag'\n"),
        ("bag,bag_label,x0", "column 'bag_label' has type"),
    ],
)
def test_a_mistake_in_ones_own_data_is_one_line(run, monkeypatch, tmp_path, columns, message):
    with gzip.open(tmp_path / "mine.csv.gz", "wt") as file:
        file.write(f"{columns}\na,no,1\nb,yes,2\n")
    monkeypatch.setenv("MILZOO_DATA", str(tmp_path))
    code, out, err = run("compare", "vgpmil", "mine")
    assert code == 2 and message in err and err.count("\n") == 1
    assert "Traceback" not in out + err


def put_in_place_of(name, engine, monkeypatch):
    """Register another function under the name of an engine."""
    monkeypatch.setattr(engine, "__name__", name)
    monkeypatch.setitem(ENGINES, name, engine)


def test_every_engine_and_nothing_else_is_offered():
    assert set(ENGINES) == {
        *("coordinate_ascent", "natural_gradient", "laplace", "svi", "maximum_a_posteriori"),
        *("pathfinder", "grid", "nuts", "gibbs", "ensemble", "tempered_smc", "pymc_nuts"),
    }


def out_of_memory(model, bags, *, seed, progress):
    raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")


@pytest.mark.in_ci
def test_failing_engine_prints_one_line(run, monkeypatch):
    """It prints a traceback if asked for."""
    put_in_place_of("coordinate_ascent", out_of_memory, monkeypatch)
    code, _, err = run("compare", "vgpmil", "digits", *SMALL)
    assert code == 2 and err == "error: RESOURCE_EXHAUSTED: out of memory\n"
    monkeypatch.setenv("MILZOO_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        run("compare", "vgpmil", "digits", *SMALL)


def test_no_command_prints_help_and_no_error(run):
    code, out, err = run()
    assert code == 2
    assert "Usage: milzoo" in out + err and "error" not in err
    assert "MILZOO_TRACEBACK" in out + err


@pytest.mark.in_ci
def test_table_is_printed_though_the_report_cannot_be_saved(run, monkeypatch, tmp_path):
    def full(self, folder, **how):
        raise OSError("no space left on device")

    monkeypatch.setattr("milzoo.diagnostics.Comparison.save_report", full)
    code, out, err = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path / "report")
    assert code == 2 and "no space left" in err
    assert "PSIS k̂" in out and "k̂ =" in out
    code, out, _ = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path / "b", "--json")
    assert code == 2 and "coordinate_ascent" in json.loads(out)["engines"]


@pytest.mark.slow
def test_gamma_scale_mixture_is_compared_with_a_logistic_sampler(run, monkeypatch):
    def brief(model, bags, *, seed, progress):
        return nuts(model, bags, seed=seed, num_warmup=10, num_samples=10)

    put_in_place_of("nuts", brief, monkeypatch)
    gamma = (
        "compare",
        "vgpmil",
        "digits",
        "--set",
        "num_inducing=5",
        "--set",
        "scale_mixture=gamma:1,2",
    )
    _, out, _ = run(*gamma, "--engines", "coordinate_ascent,nuts", "--json")
    content = json.loads(out)
    targets = {name: row["target_density"] for name, row in content["engines"].items()}
    named = "GammaScaleMixture(alpha=1.0, beta=2.0)"
    assert targets == {
        "coordinate_ascent": named,
        "nuts": named,
        "nuts (logistic)": "logistic",
    }
    assert content["reference"] == "nuts (logistic)"
    code, out, _ = run(*gamma, "--engines", "coordinate_ascent")
    assert code == 0 and "logistic)" not in out and named in "".join(out.split("\n"))


def test_a_missing_data_file_is_one_line(run, monkeypatch, tmp_path):
    monkeypatch.setenv("MILZOO_DATA", str(tmp_path))
    code, _, err = run("compare", "vgpmil", "elephant")
    assert code == 2 and "no elephant.csv.gz" in err and err.count("\n") == 1


def test_report_folder_that_is_a_file_is_refused_first(run, tmp_path):
    """The refusal comes before anything is fitted."""
    (tmp_path / "taken").write_text("")
    code, out, err = run("compare", "vgpmil", "digits", "--out", tmp_path / "taken" / "report")
    assert code == 2 and out == ""
    assert "cannot be written" in err and "taken is a file" in err


def test_a_report_folder_without_permission_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere
    code, _, err = run("compare", "vgpmil", "digits", "--out", tmp_path / "report")
    assert code == 2 and "no permission to write" in err


@pytest.mark.in_ci
def test_files_of_others_are_not_overwritten_without_force(run, tmp_path):
    """The refusal comes before anything is fitted, and names them."""
    (tmp_path / "report.html").write_text("mine")
    code, out, err = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path)
    assert code == 2 and out == ""
    assert "not written here by milzoo (report.html); give another folder" in err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "mine"
    code, *_ = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path, "--force")
    assert code == 0 and "<html" in (tmp_path / "report.html").read_text()


def test_an_interrupted_run_says_what_is_kept(run, monkeypatch, tmp_path):
    def interrupted(model, bags, *, seed, progress):
        raise KeyboardInterrupt

    put_in_place_of("coordinate_ascent", interrupted, monkeypatch)
    code, _, err = run("compare", "vgpmil", "digits", *SMALL, "--out", tmp_path / "report")
    assert code == 130 and err.count("\n") == 1
    assert "interrupted: no report was written, and one that was there is as it was" in err
    assert "the same command begins again" in err
    assert not (tmp_path / "report").exists()


@pytest.mark.in_ci
def test_warnings_of_an_engine_are_shown_with_its_name(run, monkeypatch):
    import warnings

    def noisy(model, bags, *, seed, progress):
        warnings.warn("steep here", UserWarning, stacklevel=2)
        return coordinate_ascent(model, bags, seed=seed)

    put_in_place_of("coordinate_ascent", noisy, monkeypatch)
    code, out, _ = run("compare", "vgpmil", "digits", *SMALL)
    assert code == 0 and "coordinate_ascent warns: steep here" in out


def test_models_and_datasets_are_listed(run):
    code, out, _ = run("models")
    assert code == 0 and "vgpmil" in out and "noisy maximum" in out
    code, out, _ = run("datasets")
    assert code == 0 and "digits" in out and "musk1" in out


def test_a_file_that_ends_early_is_no_abort(run, monkeypatch):
    def cut_off(model, bags, *, seed, progress):
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")

    put_in_place_of("coordinate_ascent", cut_off, monkeypatch)
    code, _, err = run("compare", "vgpmil", "digits", *SMALL)
    assert code == 2 and "a file that was read ended early: Compressed file ended before" in err


# ------------------------------------------------------------------ reproduce


def test_list_names_every_table_and_figure(run, tmp_path):
    code, out, _ = run("reproduce", "--list", "--folder", tmp_path)
    assert code == 0
    text = " ".join(out.split())
    for paper in PAPERS:
        for exhibit in paper.exhibits:
            assert f"{paper.name}/{exhibit.name}: " in text
    assert "venkatesan-2015/table-3: Accuracy on Corel. Not possible here: the Corel images" in text


def test_a_table_is_run_kept_and_shown(run, data_folder, tmp_path):
    options = ("--method", "citation k-NN", "--jobs", 1, "--folder", tmp_path)
    code, out, err = run("reproduce", "venkatesan-2015/table-1", *options, "--toy")
    assert code == 0, err
    assert "citation k-NN on musk1, honest: accuracy" in " ".join(out.split())
    assert not list(tmp_path.iterdir())  # nothing of a toy is kept
    code, out, _ = run("reproduce", "--pages", "--folder", tmp_path)
    assert code == 0
    assert len(list(tmp_path.glob("*.md"))) == len(PAPERS)


def test_settings_are_printed_with_their_scores(run, monkeypatch):
    """What the scores are is tested with `scores_by_setting`."""
    others = ("balanced_accuracy", "f1", "auc", "average_precision", "log_loss", "brier")
    settings = [f"length_scale=7.58287544405155, penalty={one}" for one in (0.1, 1.0)]
    scores = pd.DataFrame({"accuracy": [0.75, 0.5]}, settings)
    scores = scores.assign(**dict.fromkeys(others, 0.125))
    of_instances = ("instance_accuracy", "instance_f1", "instance_auc")
    scores = scores.assign(**{one: [0.625, 0.375] for one in of_instances})

    def scores_by_setting(exhibit, **chosen):
        assert (chosen["methods"], chosen["data"]) == (("MILES",), ("musk1",))
        cell = next(one for one in exhibit.cells if one.method == "MILES")
        yield cell, cell.attempts[0], scores

    monkeypatch.setattr("milzoo.cli.reproducing.scores_by_setting", scores_by_setting)
    options = ("--method", "MILES", "--data", "musk1", "--by-setting")
    code, out, err = run("reproduce", "venkatesan-2015/table-1", *options, columns="80")
    assert code == 0, err
    assert "MILES on musk1, honest" in out
    # Row by row, whole in a narrow window.
    of_bags = ["0.125"] * 6
    expected = ["0.750", *of_bags, "0.500", *of_bags, *["0.625"] * 3, *["0.375"] * 3]
    assert re.findall(r" (0\.\d{3}) ", out) == expected


@pytest.fixture
def kept_results(tmp_path):
    """A copy of those in the repository, so that nothing is fitted."""
    kept = Path(__file__).resolve().parents[2] / "docs" / "results"
    return shutil.copytree(kept, tmp_path / "results")


def test_one_method_on_one_data_set_is_run(run, data_folder, kept_results):
    options = ("--method", "MILES", "--data", "musk2", "--jobs", 1, "--folder", kept_results)
    code, out, err = run("reproduce", "venkatesan-2015/table-1", *options)
    assert code == 0, err
    assert "[1/1] MILES on musk2, honest: known" in out


def test_reasons_stand_once_below_the_table(run, data_folder, kept_results):
    options = ("--protocol", "as-published", "--method", "MISVM", "--jobs", 1)
    code, out, err = run("reproduce", "kandemir-2014/table-1", *options, "--folder", kept_results)
    assert code == 0, err
    text = " ".join(out.split())
    assert text.count("which instances of a bag are ranked") == 1
    assert "MISVM on newsgroups/rec_sport_hockey: which instances of a bag are ranked" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("venkatesan-2014",), "unknown paper 'venkatesan-2014'; did you mean 'venkatesan-2015'"),
        (("venkatesan-2015", "--protocol", "peeking"), "unknown protocol 'peeking'"),
        (("venkatesan-2015/table-1", "--method", "kNN"), "unknown method 'kNN'"),
    ],
)
def test_wrong_wishes_are_one_line(run, tmp_path, arguments, message):
    code, _, err = run("reproduce", *arguments, "--folder", tmp_path)
    assert code == 2
    assert message in err and err.count("\n") == 1


# ------------------------------------------------------------------ reference


def test_references_are_listed_with_what_is_hard(run):
    code, out, _ = run("reference", "list")
    assert code == 0
    for name in ("vgpmil-digits-20", "vwsgp-musk1-20"):
        assert name in out


def test_an_unknown_reference_is_refused_with_the_nearest(run, tmp_path):
    code, _, err = run("reference", "make", "vwsgp-musk1-21", "--folder", tmp_path)
    assert code == 2
    assert "unknown reference 'vwsgp-musk1-21'; did you mean 'vwsgp-musk1-20'?" in err


@pytest.mark.parametrize("passes", [True, False])
def test_only_a_reference_that_passes_is_kept(run, tmp_path, monkeypatch, passes):
    gate = Gate("R̂", 1.001 if passes else 1.2, 1.01, "below")
    kept = []
    made = replace(load_reference(SMALL_REFERENCE), gates=(gate,))
    monkeypatch.setattr(referencing, "make_reference", lambda *_, **__: made)
    monkeypatch.setattr(referencing, "save_reference", lambda *given: kept.append(given))
    code, out, err = run("reference", "make", "vwsgp-musk1-20", "--folder", tmp_path)
    assert "R̂" in out
    assert (code, len(kept)) == ((0, 1) if passes else (2, 0))
    assert passes or "not passed by vwsgp-musk1-20" in err


def test_a_reason_is_kept_where_there_are_no_draws(run, tmp_path):
    name = "vgpmil-gamma-digits-50"
    code, out, _ = run("reference", "make", name, "--folder", tmp_path)
    assert code == 0 and "nats lower" in out
    assert (tmp_path / "posteriors" / f"{name}.json").is_file()


@pytest.mark.parametrize(
    ("errors", "rhat", "is_same"), [(3.0, 1.001, True), (5.0, 1.001, False), (3.0, 1.2, False)]
)
def test_a_reference_is_made_again_and_compared(run, monkeypatch, errors, rhat, is_same):
    """Moments may be four standard errors of their difference apart, and all gates are asked."""
    kept, seeds = load_reference(SMALL_REFERENCE), []
    gates = (Gate("R̂", rhat, 1.01, "below"),)

    def moved(moments):
        by = errors * np.sqrt(2) * moments["mean_mcse"]
        return moments | {"mean": moments["mean"] + by}

    def made(entry, *, seed):
        seeds.append((entry.name, seed))
        moments = {site: moved(of) for site, of in kept.moments.items()}
        return replace(kept, moments=moments, gates=gates)

    monkeypatch.setattr(referencing, "make_reference", made)
    code, out, err = run("reference", "check", SMALL_REFERENCE)
    assert seeds == [(SMALL_REFERENCE, 1)]
    assert f"at most {errors:.2f} standard errors" in " ".join(out.split())
    assert code == (0 if is_same else 2)
    assert is_same or f"not the same again: {SMALL_REFERENCE}" in err


def test_a_reference_is_written_for_stan(run, tmp_path):
    code, *_ = run("reference", "stan", SMALL_REFERENCE, "--out", tmp_path)
    program = (tmp_path / f"{SMALL_REFERENCE}.stan").read_text("utf-8")
    assert code == 0 and "model {" in program
    assert json.loads((tmp_path / f"{SMALL_REFERENCE}.json").read_text("utf-8"))["num_bags"] == 60
    code, _, err = run("reference", "stan", "bmil-simulated-5", "--out", tmp_path)
    assert code == 2 and "model is BMIL" in err


def rows_of(reference, engines):
    """What engines did on a reference, in made-up numbers."""
    more = ("seconds", "ess_per_second", "warmup_seconds")
    numbers = dict.fromkeys([*referencing._COLUMNS, *more], 0.25) | {"kl": np.nan}
    about = {"reference": reference, "status": "converged", **numbers}
    return pd.DataFrame({"engine": name, **about} for name in engines)


def test_engines_are_benchmarked_by_name_and_tag(run, monkeypatch, tmp_path):
    asked = []

    def measured(engines, **wanted):
        asked.append((dict(engines), wanted))
        yield from (rows_of(reference, engines) for reference in ("vwsgp-probit-musk1-20", LONGEST))

    monkeypatch.setattr(referencing, "rows_as_they_come", measured)
    options = ("--tag", "easy", "--seed", 3, "--jobs", 1, "--out", tmp_path)
    code, out, err = run("engines", "benchmark", "laplace", "svi, flow", *options, columns="80")
    assert code == 0 and "…" not in out and "converged" in out
    chosen = {"laplace": ENGINES["laplace"], "svi, flow": LEAGUE["svi, flow"]}
    assert asked == [(chosen, {"seed": 3, "tags": ["easy"], "jobs": 1})]
    assert f"{LONGEST} done at 0 s" in err
    assert out.count(LONGEST) == 2 and "0.250" in out and "–" in out
    assert list(pd.read_csv(tmp_path / "league.csv")["engine"]) == [
        *("laplace", "laplace"),
        *("svi, flow", "svi, flow"),
    ]
    assert (tmp_path / "league.png").is_file()
    run("engines", "benchmark")
    engines, wanted = asked[-1]
    assert engines == dict(LEAGUE) and wanted == {"seed": 0, "tags": [], "jobs": None}
    code, _, err = run("engines", "benchmark", "laplac")
    assert code == 2 and "did you mean 'laplace'?" in err


def test_a_benchmark_that_dies_leaves_its_rows(run, monkeypatch, tmp_path):
    def measured(engines, **_):
        yield rows_of(LONGEST, engines)
        raise ValueError("a process was killed")

    monkeypatch.setattr(referencing, "rows_as_they_come", measured)
    code, _, err = run("engines", "benchmark", "laplace", "svi", "--out", tmp_path / "new")
    assert code == 2 and "a process was killed" in err
    assert list(pd.read_csv(tmp_path / "new" / "league.csv")["engine"]) == ["laplace", "svi"]
