"""What all tests share: one torch thread, as `make test` runs two processes at once, one seed; and what is slow."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

SLOW = (
    "browser",
    "cli",
    "compare/test_compare.py",
    "compare/test_ray.py",
    "data/test_shards.py",
    "distributed",
    "integrations",
    "models",
    "resume",
    "run/test_loop.py",
    "scoring/test_score_command.py",
    "scoring/test_score_images.py",
    "scoring/test_score_registry.py",
    "test_examples.py",
    "test_inspect.py",
    "test_library_half.py",
    "test_report.py",
    "test_split.py",
    "test_torchvision.py",
    "test_wheel.py",
)
"""Files and folders with tests that start programs, browsers and several processes, or build many models.

`make test-fast` leaves them out.
"""


FORKING = ("test_ddp.py", "test_train.py")
"""Files that fork: first, as a fork of a process in which a library has started threads may wait for ever."""

FIRST = (
    *FORKING, "test_examples.py", "test_compare.py", "test_kill.py", "test_split.py", "test_inspect.py", "test_page.py",
    "test_torchvision.py", "test_wheel.py", "test_methods.py", "test_models.py", "test_prune_train.py", "test_report.py"
)  # fmt: skip
"""Then the files that take longest, in that order."""

LONG = (
    "cli/test_plugins.py::test_the_example_of_your_own_method_form_and_score_appears_everywhere",
    "cli/test_plugins.py::test_its_methods_are_listed_trained_with_and_known_to_child_processes",
    "compare/test_compare.py::test_ctrl_c_leaves_a_usable_table_and_resume_ends_in_the_same_bits",
    "compare/test_ray.py",
    "integrations/test_lightning.py::test_two_processes_train_what_one_trains",
    "methods/test_coresets.py::test_the_objective_is_that_of_apricot",
    "resume/test_kill.py::test_a_signal_saves_the_run_and_prints_how_to_go_on[15-143]",
    "resume/test_kill.py::test_mid_epoch_with_workers_and_another_number_of_them",
    "resume/test_methods.py::test_a_cut_run_goes_on_bit_for_bit[el2n[models=1,score_epochs=1] +",
    "resume/test_methods.py::test_a_cut_run_goes_on_bit_for_bit[mixtrain-cutmix + lean",
    "resume/test_methods.py::test_a_cut_run_goes_on_bit_for_bit[random-backprop[keep=0.8] +",
    "test_examples.py::test_the_example_learns_and_says_what_it_cost[compiled.py]",
    "test_examples.py::test_the_example_learns_and_says_what_it_cost[distributed.py]",
    "test_examples.py::test_the_example_learns_and_says_what_it_cost[own_method.py]",
    "test_inspect.py::test_a_model_that_cannot_be_split_has_no_split_rows",
    "test_inspect.py::test_the_same_seed_gives_the_same_files_and_another_one_does_not",
    "test_split.py::test_the_docs_table_is_what_the_models_do",
    "test_wheel.py::test_it_brings_what_it_needs_into_a_clean_environment",
)
"""Tests of ten seconds and more that have a shorter relative in `make test`; `make test-all` runs them too."""


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Equal random numbers in every test, whichever tests its process ran before."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix()
        if place.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if f"{place}::{item.nodeid.partition('::')[2]}".startswith(LONG):
            item.add_marker(pytest.mark.long)
    # The slow ones first, so that no worker is left with the longest file at the end.
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))
