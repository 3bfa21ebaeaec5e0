"""Programs kept on disk: in the user's folder, unless JAX has one."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import jax, jax.numpy as jnp
    from milzoo.inference import keep_programs

    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append("cache_hits" in event))
    print(keep_programs())
    # A quick machine compiles in less time than is worth a file.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    root = jax.jit(lambda x: jnp.linalg.cholesky(x @ x.T + jnp.linalg.svd(x)[0] @ jnp.sin(x)))
    root(jnp.eye(3)).block_until_ready()
    print(sum(hits))
"""


def run(program: str = PROGRAM, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    options = {"capture_output": True, "text": True, "check": True, "cwd": Path(__file__).parent}
    return subprocess.run(command, env=kept | environment, **options).stdout.split()


@pytest.mark.in_ci
def test_the_next_process_reads_what_one_compiled(tmp_path):
    folder, hits = run(XDG_CACHE_HOME=str(tmp_path))
    assert Path(folder) == tmp_path / "milzoo" / "programs" and hits == "0"
    assert any(Path(folder).iterdir())
    assert int(run(XDG_CACHE_HOME=str(tmp_path))[1]) > 0


def test_processes_started_later_keep_programs_too(tmp_path):
    program = """
        from joblib import Parallel, delayed
        from milzoo.inference import keep_programs

        def flags():
            import jax

            return jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size

        keep_programs()
        here, there = flags(), Parallel(n_jobs=2)([delayed(flags)()])[0]
        print(here == there, *there)
    """
    same, folder, most_bytes = run(program, XDG_CACHE_HOME=str(tmp_path))
    assert same == "True"
    assert Path(folder) == tmp_path / "milzoo" / "programs"
    assert int(most_bytes) == 2**29


@pytest.mark.slow
def test_a_cache_that_jax_has_stays(tmp_path):
    given = tmp_path / "given"
    environment = {"XDG_CACHE_HOME": str(tmp_path / "own"), "JAX_COMPILATION_CACHE_DIR": str(given)}
    assert run(**environment)[0] == "None"
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "milzoo").write_text("a file in its place")
    assert run(XDG_CACHE_HOME=str(tmp_path))[0] == "None"
