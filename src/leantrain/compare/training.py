"""Training the runs of a comparison: in turns, so that their times can be compared, or several at once."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import uuid
from typing import Any

from leantrain.compare.engines import Ended, Engine, Job
from leantrain.compare.folder import ComparisonFolder
from leantrain.compare.settings import BASELINE, Entry, Settings
from leantrain.data import ImageSet
from leantrain.run.config import TrainConfig
from leantrain.run.display import Display, Quiet
from leantrain.run.estimate import Pace, budget_for_time, warm_up
from leantrain.run.lock import holder, locked
from leantrain.run.loop import Run
from leantrain.run.setup import load_images, resolve
from leantrain.run.signals import Interrupted, on_stop

PHASES = (False, True)
"""Which rows are trained together, by whether they wait: a control may need to know what its method cost."""


class Training:
    """Trains what a comparison lacks, seed by seed.

    Args:
        settings: what is compared.
        folder: where it is written.
        display: what the user sees.
        whole: what the folder is a comparison of, where that is more than is trained now.

    Attributes:
        failures: by row and seed, why a run failed.
    """

    def __init__(
        self,
        settings: Settings,
        folder: ComparisonFolder,
        display: Display | None = None,
        whole: Settings | None = None,
    ) -> None:
        self.settings = settings
        self._whole = whole or settings
        self.folder = folder
        self.display: Display = display or Quiet()
        self.failures: dict[str, str] = {}
        self._session = uuid.uuid4().hex[:8]
        self._running: Run | None = None
        self._stop_signal = 0
        self._noted: set[str] = set()
        self._found: dict[str, float] = {}  # by row, the budget that takes its share of the time
        self._paces: dict[str, Pace] = {}  # by method, for as long as budgets are looked for
        self._done = 0.0  # share of the whole table

    def train(self, engine: Engine | None = None) -> None:
        """Train every missing run. One failing is noted in its row and the others go on.

        Args:
            engine: trains them side by side; without one they take turns here.
        """
        self.folder.write_settings(self._whole)
        self.display.start(1, 0.0)
        try:
            with on_stop(self._stop):
                if engine is not None:
                    self._train_side_by_side(engine)
                else:
                    for seed in self.settings.seed_numbers():
                        self._train_seed(seed)
        finally:
            self.display.stop()

    # -- in turns ----------------------------------------------------------------------------------------------------

    def _train_seed(self, seed: int) -> None:
        """Runs take turns, an epoch each, the one furthest behind first: a slow minute falls on all alike."""
        entries = self.settings.entries()
        config = dataclasses.replace(self.settings.config, seed=seed)
        images = load_images(config)
        for phase in PHASES:
            with contextlib.ExitStack() as locks:
                turns = [
                    (e, run) for e in entries if e.waits is phase and (run := self._open(e, config, images, locks))
                ]
                if self._paces:
                    self._paces.clear()
                    gc.collect()  # networks, held by cycles where torch has imported modules meanwhile
                while turns:
                    turn = min(turns, key=lambda turn: turn[1].lean.progress)
                    if not self._turn(*turn):
                        turns.remove(turn)

    def _open(self, entry: Entry, config: TrainConfig, images: ImageSet, locks: contextlib.ExitStack) -> Run | None:
        """The run of one row and seed, where it stopped, its folder locked; None where it is finished or cannot be."""
        folder = self.folder.run(entry, config.seed)
        if folder.finished:
            self._advance(1.0)
            return None
        try:
            wanted = self._config_of(entry, config)
            if wanted is not None and entry.unit == "time":
                wanted = dataclasses.replace(wanted, budget=self._budget_found(entry, wanted, images))
            if wanted is None:
                return None
            run = Run(resolve(dataclasses.replace(wanted, out=str(folder)), images), images, folder.path, alone=False)
            locks.enter_context(locked(folder.path))
            if not run.load_checkpoint():
                run.write_config()
            warm_up(run)
            self._leave_if_asked()
            return run
        except Interrupted:
            raise
        except Exception as error:
            self._fail(entry, config.seed, error)
            return None

    def _config_of(self, entry: Entry, config: TrainConfig) -> TrainConfig | None:
        """A run's settings; a control's follow from what its method cost with that seed."""
        if entry.role == "equal-budget":
            config = self.settings.of_control(config)
        if not entry.waits:
            return dataclasses.replace(config, method=entry.method, budget=entry.budget)
        method = next(e for e in self.settings.entries() if e.label == entry.control_of and e.role == "method")
        result = self.folder.run(method, config.seed).result()
        if result is None:  # it failed, and so has nothing to be compared with
            return None
        share = result["cost_epochs"] / result["planned_epochs"]
        if entry.role == "equal-budget":
            return dataclasses.replace(config, method=BASELINE, budget=round(share, 6))
        if share >= 1.0:
            return None
        return dataclasses.replace(config, method=f"rs2[keep={share:.6f}]")

    def _budget_found(self, entry: Entry, config: TrainConfig, images: ImageSet) -> float:
        """The share of the cost with which a row takes its share of the time: the same for all of its seeds."""
        assert entry.budget is not None
        if entry.method == BASELINE:  # whose examples all take equally long
            return entry.budget
        if entry.label not in self._found:
            self._found[entry.label] = self._budget_of_another_seed(entry) or self._budget_by_trial(
                entry, config, images
            )
        return self._found[entry.label]

    def _budget_of_another_seed(self, entry: Entry) -> float | None:
        """What an earlier call has found."""
        runs = [self.folder.run(entry, seed) for seed in self.settings.seed_numbers()]
        return next((run.config().budget for run in runs if run.holds_run), None)

    def _budget_by_trial(self, entry: Entry, config: TrainConfig, images: ImageSet) -> float:
        assert entry.budget is not None
        if entry.method not in self._paces:
            self._paces[entry.method] = Pace(Run(resolve(config, images), images, alone=False))
        found = budget_for_time(entry.budget, self._paces[entry.method])
        self.display.note(f"{entry.label}: by timing some steps, {found:.3g} of the cost")
        return found

    def _turn(self, entry: Entry, run: Run) -> bool:
        """Train one epoch of one run; says whether there is more to train."""
        self._running = run
        whole = run.lean.position == 0 or run.lean.epoch_done
        before = run.lean.progress
        try:
            if not run.finished:
                row = run.train_epoch()
                if whole:  # an epoch cut by a stop was not trained in one go
                    self._note_turn(entry, run.config.seed, row)
            self._advance(run.lean.progress - before)
            if run.finished:
                result = run.write_result()
                self.display.note(
                    f"{entry.label}, seed {run.config.seed}: {result['test_accuracy']:.2%} "
                    f"at a cost of {result['cost_epochs']:.1f} epochs"
                )
        except Interrupted:
            raise
        except Exception as error:
            self._fail(entry, run.config.seed, error)
            return False
        finally:
            self._running = None
        self._leave_if_asked()
        return not run.finished

    def _note_turn(self, entry: Entry, seed: int, row: dict[str, Any]) -> None:
        turn = {"session": self._session, "row": entry.label, "seed": seed}
        turn |= {name: row[name] for name in ("epoch", "seconds")}
        self.folder.add_turn(turn)

    def _fail(self, entry: Entry, seed: int, error: Exception) -> None:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        self.failures[f"{entry.label}, seed {seed}"] = reason
        self.display.note(f"{entry.label}, seed {seed} failed: {reason}")

    def _stop(self, number: int) -> None:
        """A signal lets the run at hand save itself, then ends the comparison."""
        self._stop_signal = number
        if self._running is not None:
            self._running.stop(number)

    def _leave_if_asked(self) -> None:
        if self._stop_signal:
            raise Interrupted(self._stop_signal)

    def _advance(self, share: float) -> None:
        """One run's share of the whole table."""
        total = len(self.settings.entries()) * self.settings.seeds
        self._done += share / total
        self.display.step(0, min(1.0, self._done))

    # -- side by side ------------------------------------------------------------------------------------------------

    def _train_side_by_side(self, engine: Engine) -> None:
        """Several runs at once; for accuracies only, as they slow each other down."""
        try:
            for phase in PHASES:
                waiting = [
                    (entry, seed)
                    for seed in self.settings.seed_numbers()
                    for entry in self.settings.entries()
                    if entry.waits is phase
                ]
                while waiting or engine.busy:
                    while engine.has_room and (one := self._next(waiting)) is not None:
                        job = self._job(*one)
                        if job is not None:
                            engine.start(job)
                    for ended in engine.ended():
                        self._collect(ended)
                    self._leave_if_asked()
        finally:
            engine.stop()

    def _next(self, waiting: list[tuple[Entry, int]]) -> tuple[Entry, int] | None:
        """Take the next run; not one that a process of a killed comparison still saves itself from."""
        for place, (entry, seed) in enumerate(waiting):
            held = holder(self.folder.run(entry, seed).path)
            if held is None:
                return waiting.pop(place)
            self._note_once(f"{entry.label}, seed {seed} waits for {held} to let go of it")
        return None

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.display.note(text)

    def _job(self, entry: Entry, seed: int) -> Job | None:
        """The run of one row and seed; None where it is finished or cannot be."""
        folder = self.folder.run(entry, seed)
        if folder.finished:
            self._advance(1.0)
            return None
        config = self._config_of(entry, dataclasses.replace(self.settings.config, seed=seed))
        if config is None:
            return None
        file = self.folder.write_run_settings(entry, dataclasses.replace(config, out=str(folder)))
        return Job((entry, seed), file, folder.path, self.folder.log_file(entry, seed))

    def _collect(self, ended: Ended) -> None:
        entry, seed = ended.job.key
        self._advance(1.0)
        if ended.code in (130, 143):
            raise Interrupted(ended.code - 128)
        if ended.code:
            said = ended.job.log.read_text(errors="replace").strip() if ended.job.log.exists() else ""
            self._fail(entry, seed, RuntimeError(ended.why or said or f"it ended with code {ended.code}"))
        else:
            result = self.folder.run(entry, seed).result()
            assert result is not None
            self.display.note(f"{entry.label}, seed {seed}: {result['test_accuracy']:.2%}")
