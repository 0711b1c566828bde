"""What a method is: a frozen config and two pure functions. What only some methods need is in protocols of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from leantrain.coresets import Looked
from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.forms import Form
from leantrain.ledger import Ledger
from leantrain.mixing import Mixer
from leantrain.options import check, option, spell_named
from leantrain.plan import Plan
from leantrain.registry import Registry

if TYPE_CHECKING:
    from leantrain.channels import Channels
    from leantrain.methods.chain import Chain

State = dict[str, Any]
"""A method's own state: tensors and plain values only, so that a checkpoint loads without executing code."""


class Moment(NamedTuple):
    """When a draft is made: what a method may know besides the ledger.

    Attributes:
        epoch: the epoch to draft, from 0.
        progress: 0…1, how far the run is when that epoch starts.
        epochs: how many epochs the run stands for.
        batch_size: inputs per batch.
        side: pixels along an image's shorter side; 0 where no method of the run shows examples in another form.
        left: what is left of the budget, in examples of plain training; infinite without a budget.
        budget: the share of the plain run's cost that may be spent; None without a budget.
        offer: the way of showing that the model takes, of those that a method offers; none where it takes none.
    """

    epoch: int
    progress: float
    epochs: int
    batch_size: int
    side: int = 0
    left: float = math.inf
    budget: float | None = None
    offer: tuple[Form, ...] = ()

    def ends_before(self, share: float) -> bool:
        """Whether the epoch, counted as one of `epochs`, reaches no further than that share of the run."""
        return self.progress + 1.0 / self.epochs <= share + 1e-9


class Seen(NamedTuple):
    """Examples as the model is shown them, with their losses where these are known.

    Attributes:
        inputs: the row of numbers that the method's `condense` makes of each. For a method without one, what the model
            gets (whole, unless the data set itself gave them smaller), and None where several processes train.
        targets: int64 class indices.
        losses: clean losses, or None before the model has looked.
        classes: how many classes the model tells apart; 0 before it has answered.
    """

    inputs: Any
    targets: Tensor
    losses: Tensor | None
    classes: int = 0


class ScoreRequest(NamedTuple):
    """The scores that a method prunes by, and how to make them where none are given.

    Attributes:
        score: which score, as `leantrain score` spells it.
        models: over how many models it is the mean.
        epochs: how long each is trained.
        cost: what that costs, in epochs of plain training; nothing where a file has them.
        file: where they are, if they are to be re-used.
        arithmetic: how the cost comes about.
    """

    score: str
    models: int
    epochs: int
    cost: float
    file: str | None
    arithmetic: str = ""


class ScoresGiven(NamedTuple):
    """What the scores that a method was given cost, and whether that was paid elsewhere."""

    cost: float
    seconds: float
    reused: bool


class Panel(NamedTuple):
    """Metrics of a method that the page draws over the epochs.

    Attributes:
        kind: "shares" for parts of a whole, stacked; "lines" for values.
        title: above the picture.
        words: what it shows, in a sentence.
        metrics: the names in the method's report, each with what it is called.
        on_losses: whether its values are losses, to be marked in the picture of an epoch's losses too.
    """

    kind: str
    title: str
    words: str
    metrics: Mapping[str, str]
    on_losses: bool = False


class Reason(NamedTuple):
    """Why a method treated an example as it did.

    Attributes:
        label: in words, for the page.
        skipped: whether the example was left out for it; else it was mixed for it.
    """

    label: str
    skipped: bool = False


METHODS: Registry[Method] = Registry("method", hint="Your own must be imported first: leantrain --plugin FILE …")
register_method = METHODS.register


@dataclass(frozen=True)
class Method(ABC):
    """Answers one question: which examples, in what form, with what weight, does the next epoch train on?

    Subclasses add their options as dataclass fields made with `leantrain.options.option`. A method keeps nothing on
    itself: state is a value that comes in and goes out, so it is in the checkpoint and two runs never share it. What
    else a method may do is found by what it has: see `Mixes`, `Shows`, `Thins`, `Learns`, `NeedsLosses`, `NeedsScores`.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    former: ClassVar[Mapping[str, Callable[[str], str]]] = {}
    """Options that are gone: from the value given, what to write instead."""
    after_mixing: ClassVar[bool] = False
    """Whether it may follow a method that mixes: it then neither chooses, weighs nor groups single examples."""
    with_composites: ClassVar[bool] = True
    """Whether it can share a chain with a method that mixes, whatever the order."""
    reasons: ClassVar[Mapping[int, Reason]] = {}
    """What the values of its ledger field `reason`, if it registers one, say about an example's treatment."""
    panels: ClassVar[tuple[Panel, ...]] = ()
    """What the page draws of its report."""
    default_budget: ClassVar[float | None] = None
    """The budget of a run that names none, for methods that need one."""

    start: float = option(0.0, "share of the run before which it does nothing", low=0.0, below=1.0)
    until: float = option(1.0, "share of the run after which it does nothing; no epoch beyond it", above=0.0, high=1.0)

    def __post_init__(self) -> None:
        check(self)
        for name in ("start", "until"):
            if getattr(self, name) is None:
                raise LeanError(f"{name} is None, but must be a share of the run, from 0 to 1.")
        if self.start >= self.until:
            raise LeanError(f"start={self.start} is not before until={self.until}; lower start or raise until.")

    def __str__(self) -> str:
        return spell_named(self, self.name)

    def __add__(self, other: Method | str) -> Chain:
        """Both, from left to right, as `leantrain.chain(a, b)`."""
        from leantrain.methods.chain import chain

        return chain(self, other)

    @property
    def expected_share(self) -> float | None:
        """What an epoch costs with it, as a share of what it would cost without; None where only the data can tell."""
        return None

    def warning(self, epochs: int) -> str | None:
        """Why these options cannot save anything in a run of so many epochs, with the arithmetic; None if they can."""
        return None

    def active(self, moment: Moment) -> bool:
        """Whether an epoch that starts at this moment lies between `start` and `until`, counted as one of `epochs`."""
        begun = moment.progress >= self.start - 1e-9
        return begun and (self.until == 1.0 or moment.ends_before(self.until))

    def init(self, ledger: Ledger) -> State:
        """The state before the first epoch; the place to register ledger fields."""
        return {}

    @abstractmethod
    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        """The next epoch, from what the methods before it left of it, and the state after that.

        Of the ledger it may change the fields that `init` registered, and no others.
        """

    def idle(self, state: State, ledger: Ledger, moment: Moment) -> State:
        """The state after an epoch was drafted that lies outside `start` and `until`."""
        return state

    def report(self, state: State, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        """What the method adds to an epoch's metrics; called once at the epoch's end."""
        return {}


# -- what only some methods have ---------------------------------------------------------------------------------------


@runtime_checkable
class Shows(Protocol):
    """Shows examples in another form than whole."""

    def forms(self, side: int) -> tuple[Form, ...]:
        """The forms in its drafts, for images of so many pixels a side; a model that cannot take one is refused."""


@runtime_checkable
class Offers(Protocol):
    """Shows examples in one of several ways: the first that the model takes, or whole."""

    def offers(self, side: int) -> tuple[tuple[Form, ...], ...]:
        """The forms of each way, the best one first; `Moment.offer` says which was taken.

        None where images of so many pixels a side are too small for a way.
        """


@runtime_checkable
class Mixes(Protocol):
    """Puts several examples into one input."""

    @property
    def mixer(self) -> Mixer:
        """How they are mixed."""


@runtime_checkable
class Ends(Protocol):
    """Ends the run before its schedule does."""

    @property
    def end(self) -> float:
        """The share of the run after which it ends."""

    @property
    def wanted_accuracy(self) -> float | None:
        """The accuracy on held-out data with which it ends, if it waits for one; see `Lean.validated`."""


@runtime_checkable
class Thins(Protocol):
    """Decides inside the epoch which candidates of its draft are trained on."""

    def thin(self, state: State, seen: Seen, draws: Tensor) -> tuple[Tensor, State]:
        """Which candidates of a batch to train on, as a mask, and the entries of the state that this changes.

        Several processes decide alike, each on the candidates of all.

        Args:
            state: as it is now.
            seen: the candidates; with losses where the draft has them scored.
            draws: a number in [0, 1) for each of them.
        """


@runtime_checkable
class Learns(Protocol):
    """Learns from every batch that was trained; several processes learn the same from what all of them trained."""

    def learn(self, state: State, seen: Seen) -> State:
        """The entries of the state that change after a batch was trained."""


@runtime_checkable
class Condenses(Protocol):
    """Looks at inputs when it thins or learns: at a few numbers of each, which several processes can share."""

    def condense(self, inputs: Any) -> Tensor:
        """A row of float numbers per input."""


@runtime_checkable
class NeedsLosses(Protocol):
    """Must know losses before it drafts, also of examples that were not trained on."""

    def needs_losses(self, draft: Draft, ledger: Ledger, moment: Moment) -> Tensor | None:
        """The examples whose losses are to be measured first."""


@runtime_checkable
class Selects(Protocol):
    """Chooses, before some epochs, by a look at every example with the model as it is, which is paid for."""

    every: int

    def wants_selection(self, state: State, moment: Moment) -> bool:
        """Whether to look before this epoch."""

    def select(self, state: State, ledger: Ledger, looked: Looked, moment: Moment, rng: torch.Generator) -> State:
        """The state after choosing by what was seen; the choice is in the ledger fields that `init` registered."""


@runtime_checkable
class NeedsScores(Protocol):
    """Chooses by scores that are made before the first epoch."""

    @property
    def score_request(self) -> ScoreRequest:
        """Which scores, and how to make them where none are given."""

    def use_scores(
        self, state: State, ledger: Ledger, scores: Tensor, targets: Tensor, given: ScoresGiven
    ) -> tuple[State, dict[str, Any]]:
        """The state with the scores used, one per example, and what came of it in a few plain values."""


@runtime_checkable
class Reshapes(Protocol):
    """Takes channels out of the model between epochs, or puts some in, and has a group lasso drive them to zero."""

    def reshape(
        self,
        state: State,
        channels: Channels,
        optimizer: torch.optim.Optimizer,
        moment: Moment,
        rng: torch.Generator,
    ) -> State:
        """Change the model's channels before an epoch, and the optimiser's state with them; the state after that.

        The entry `widths` of the state is how many channels each bundle has since then, for a run that is resumed.
        """

    def coefficient(self, loss: float, lasso: float) -> float:
        """What the lasso counts in the loss, from the values of both in the run's first step."""
