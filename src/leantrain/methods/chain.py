"""Chains: methods put together. Each turns the draft of the one before it into the next, from left to right."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from leantrain.coresets import Looked
from leantrain.cost import scoring_cost
from leantrain.draft import Draft
from leantrain.errors import LeanError
from leantrain.forms import FORMS, Form
from leantrain.ledger import Ledger
from leantrain.methods.base import (
    METHODS,
    Ends,
    Learns,
    Method,
    Mixes,
    Moment,
    NeedsLosses,
    NeedsScores,
    Offers,
    Reshapes,
    Selects,
    Shows,
    State,
    Thins,
)
from leantrain.mixing import Mixer
from leantrain.options import options_of, split_outside
from leantrain.plan import Plan

P = TypeVar("P")
States = list[State]
"""One state per method of the chain, in its order."""


def chain(*methods: Method | str) -> Chain:
    """Methods put together, from left to right: `chain(EL2N(), MixTrain("cutmix"))`, or `a + b`."""
    if not methods:
        raise LeanError("a chain needs at least one method.")
    return Chain(methods=tuple(part for method in methods for part in parts_of(as_method(method))))


def as_method(method: Any) -> Method:
    """A method that was given as itself or as text; anything else is refused."""
    if isinstance(method, str):
        return parse_method(method)
    if not isinstance(method, Method):
        what = f"the class {method.__name__}" if isinstance(method, type) else f"of the type {type(method).__name__}"
        raise LeanError(
            f'method is {what}, but must be a method such as RS2(keep=0.5), or text such as "rs2[keep=0.5]".'
        )
    return method


def choose_method(
    method: Method | str | None, budget: float | None, *, tuned: bool = False
) -> tuple[Method, float | None]:
    """The method and the budget of a run, of which the user may leave either open, or both.

    A budget alone means `lean`, nothing at all means plain training, and a method that needs a budget has its own.

    Args:
        tuned: the model starts from published weights; a budget alone then means `freezing`.
    """
    chosen = as_method(method if method is not None else "plain" if budget is None else for_a_budget(tuned))
    return chosen, chain(chosen).default_budget if budget is None else budget


def for_a_budget(tuned: bool) -> str:
    """The method that a budget alone means.

    Weights that were published at one size do best with whole images, of which `freezing` pays for more.
    """
    return "freezing" if tuned else "lean"


def parts_of(method: Method) -> tuple[Method, ...]:
    """The methods that one is made of: itself, unless it is a chain."""
    return method.methods if isinstance(method, Chain) else (method,)


def parse_method(text: str) -> Method:
    """A method, or a chain of methods, from text: `el2n[prune=0.25] + mixtrain-cutmix[until=0.8]`."""
    parts = split_outside(text, "+")
    if len(parts) > 1 and not all(part.strip() for part in parts):
        raise LeanError(f"method '{text}' has nothing on one side of a '+'; write NAME + NAME.")
    methods = [METHODS.parse(part) for part in parts]
    return methods[0] if len(methods) == 1 else chain(*methods)


@dataclass(frozen=True)
class Chain(Method):
    """Several methods as one. What cannot be combined is refused when it is built.

    The states of its methods and their ledger fields are each one's own, by its place in the chain; a single method is
    a chain of one to whoever runs it.
    """

    name: ClassVar[str] = "chain"
    methods: tuple[Method, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self) is Chain and (self.start, self.until) != (0.0, 1.0):
            raise LeanError(f"a chain has no start={self.start} and until={self.until}; give them to its methods.")
        for late, second in enumerate(self.methods):
            for first in self.methods[:late]:
                reason = refusal(first, second)
                if reason is not None:
                    raise LeanError(f"{first} + {second} cannot be combined: {reason}.")

    def __str__(self) -> str:
        return " + ".join(map(str, self.methods))

    # -- drafting ----------------------------------------------------------------------------------------------------

    def views(self, ledger: Ledger) -> list[Ledger]:
        """The ledger as each method sees it."""
        return [ledger.scoped(str(place)) for place in range(len(self.methods))]

    def init_all(self, ledger: Ledger) -> States:
        return [method.init(view) for method, view in zip(self.methods, self.views(ledger), strict=True)]

    def draft_all(
        self,
        states: States,
        ledger: Ledger,
        moment: Moment,
        rng: torch.Generator,
        measure: Callable[[Tensor], None] = lambda index: None,
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
        look: Callable[[], Looked] | None = None,
    ) -> tuple[Draft, States]:
        """The draft that all methods together make of everything, and their states after it.

        Args:
            measure: makes the ledger know the losses of these examples.
            timed: wraps what is choosing, and not measuring.
            look: asks the model about every example; None where there is no model.
        """
        draft, after = Draft.everything(len(ledger)), []
        for method, state, view in zip(self.methods, states, self.views(ledger), strict=True):
            active = method.active(moment)
            if active and isinstance(method, NeedsLosses):
                unknown = method.needs_losses(draft, view, moment)
                if unknown is not None and len(unknown):
                    measure(unknown)
            looked = None
            if active and look is not None and isinstance(method, Selects) and method.wants_selection(state, moment):
                looked = look()
            with timed():
                if looked is not None and isinstance(method, Selects):
                    state = method.select(state, view, looked, moment, rng)
                if active:
                    draft, state = method.draft(draft, state, view, moment, rng)
                else:
                    state = method.idle(state, view, moment)
            after.append(state)
        return draft, after

    def report_all(self, states: States, ledger: Ledger, plan: Plan) -> dict[str, Any]:
        """The reports of all methods, each metric under its `metric_name`; their notes are one."""
        merged: dict[str, Any] = {}
        notes = []
        for place, (method, view) in enumerate(zip(self.methods, self.views(ledger), strict=True)):
            report = dict(method.report(states[place], view, plan))
            notes += [report.pop("note")] if "note" in report else []
            merged |= {self.metric_name(place, name): value for name, value in report.items()}
        return {**merged, "note": " ".join(notes)} if notes else merged

    def metric_name(self, place: int, name: str) -> str:
        """What a method's metric is called: its own name where it is alone, else with the method's name before it."""
        if len(self.methods) == 1:
            return name
        own = self.methods[place].name
        before = sum(method.name == own for method in self.methods[:place])
        return f"{own}-{before + 1}/{name}" if before else f"{own}/{name}"

    def draft(
        self, draft: Draft, state: State, ledger: Ledger, moment: Moment, rng: torch.Generator
    ) -> tuple[Draft, State]:
        raise NotImplementedError("a chain is drafted by draft_all, from everything")

    # -- what its methods need ---------------------------------------------------------------------------------------

    def having(self, protocol: type[P]) -> list[tuple[int, P]]:
        """The methods that have what the protocol says, with their places."""
        return [(place, method) for place, method in enumerate(self.methods) if isinstance(method, protocol)]

    @property
    def mixer(self) -> Mixer | None:
        """How composites are mixed; None where none are."""
        found = self.having(Mixes)
        return found[0][1].mixer if found else None

    @property
    def thinner(self) -> tuple[int, Thins] | None:
        """The method that decides inside the epoch, and its place."""
        found = self.having(Thins)
        return found[0] if found else None

    @property
    def shows(self) -> bool:
        """Whether any of its methods shows examples in another form than whole, or would."""
        return bool(self.having(Shows) or self.having(Offers))

    def offers(self, side: int) -> tuple[tuple[Form, ...], ...]:
        """The ways in which its methods may show examples, the best first and whole last."""
        found = [way for _, method in self.having(Offers) for way in method.offers(side)]
        return (*found, ())

    @property
    def default_budget(self) -> float | None:  # type: ignore[override]
        """The smallest budget that a method of it asks for where none is named."""
        return min((one.default_budget for one in self.methods if one.default_budget is not None), default=None)

    @property
    def end(self) -> float:
        """The share of the run after which it ends, where a method ends it before its schedule does."""
        return min((method.end for _, method in self.having(Ends)), default=1.0)

    @property
    def wanted_accuracy(self) -> float | None:
        """The accuracy on held-out data that ends the run, where a method waits for one."""
        wanted = [method.wanted_accuracy for _, method in self.having(Ends)]
        return min((accuracy for accuracy in wanted if accuracy is not None), default=None)

    @property
    def learners(self) -> list[tuple[int, Learns]]:
        return self.having(Learns)

    def forms(self, side: int, offer: tuple[Form, ...] = ()) -> tuple[Form, ...]:
        """Every form that may stand in its drafts: what each method shows, and what several show at the same time.

        Args:
            side: pixels along an image's shorter side.
            offer: the one of `offers` that is taken.
        """
        found = [(Form(), 0.0, 1.0)]  # each with the part of the run in which it may occur
        for method in self.methods:
            own = method.forms(side) if isinstance(method, Shows) else offer if isinstance(method, Offers) else ()
            found += [
                (_both(one, other), max(begin, method.start), min(end, method.until))
                for one, begin, end in found
                if begin < method.until and method.start < end
                for other in own
            ]
        return tuple(dict.fromkeys(form for form, _, _ in found if form.parts))

    def leaves_out(self, side: int) -> bool:
        """Whether some batches leave parameters of the model without a gradient; `side` as for `forms`."""
        return any(FORMS[name].leaves_out for form in self.forms(side) for name, _ in form.parts)

    # -- what it is expected to cost ---------------------------------------------------------------------------------

    @property
    def expected_share(self) -> float | None:
        share = 1.0
        for method in self.methods:
            own = method.expected_share
            if own is None:
                return None
            share *= 1.0 - (method.until - method.start) * (1.0 - own)
        return share

    @property
    def scores_cost(self) -> float:
        """What making the scores that it needs costs, in epochs of plain training; equal ones are made once."""
        requests = {method.score_request for _, method in self.having(NeedsScores)}
        return math.fsum(request.cost for request in requests)

    def selection_cost(self, epochs: int) -> float:
        """What choosing costs in so many epochs, in epochs of plain training."""
        windows = [(one.every, self.methods[place]) for place, one in self.having(Selects)]
        counts = [math.ceil(epochs * (method.until - method.start) / every) for every, method in windows]
        return scoring_cost(1) * sum(counts)

    def warning(self, epochs: int) -> str | None:
        if len(self.methods) == 1 and (own := self.methods[0].warning(epochs)) is not None:
            return own
        share = self.expected_share
        if share is None or self.scores_cost + epochs * share <= 1.001 * epochs:
            return None
        making = [method.score_request for _, method in self.having(NeedsScores) if method.score_request.cost]
        parts = [f"{request.arithmetic} epochs for the scores" for request in dict.fromkeys(making)]
        parts.append(f"{epochs} × {share:.2f} = {epochs * share:.1f} for training")
        remedy = "train longer, make fewer scores, or re-use them with scores=FILE." if making else "keep fewer."
        return f"{self} cannot save anything in {epochs} epochs: it costs {' and '.join(parts)}; {remedy}"

    def warnings(self, epochs: int, budget: float | None = None) -> list[str]:
        """What is not worth it in a run of so many epochs: no saving, or a method that never gets its turn."""
        found = [text] if budget is None and (text := self.warning(epochs)) is not None else []
        for method in self.methods:
            if not any(method.active(Moment(epoch, epoch / epochs, epochs, 1)) for epoch in range(epochs)):
                found.append(
                    f"{method} does nothing in {epochs} epochs, as none lies between {method.start:g} and "
                    f"{method.until:g} of the run; train longer, or change start or until."
                )
        return found


@dataclass(frozen=True)
class Preset(Chain):
    """A chain under a name of its own, with the options of all its methods; made by `preset`."""

    kinds: ClassVar[tuple[type[Method], ...]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(kind(**self._options(kind)) for kind in self.kinds))
        super().__post_init__()

    def __str__(self) -> str:
        return Method.__str__(self)

    def _options(self, kind: type[Method]) -> dict[str, Any]:
        """A method's options; its own window where the preset was given none."""
        names = [field.name for field in options_of(kind)]
        window = {"start": 0.0, "until": 1.0}
        return {name: value for name in names if (value := getattr(self, name)) != window.get(name, ...)}


def preset(name: str, meaning: str, *kinds: type[Method]) -> type[Preset]:
    """A chain of these kinds as a method of its own, which takes the options of all of them.

    Args:
        name: what it is called.
        meaning: its first line in lists and help.
        kinds: registered methods whose options, but for `start` and `until`, have different names.
    """
    own = dict[str, tuple[str, Any, Any]]()
    for kind in kinds:
        hints = typing.get_type_hints(kind)
        for field in options_of(kind):
            if field.name not in ("start", "until"):
                if field.name in own:
                    raise LeanError(
                        f"preset '{name}' has two methods with an option '{field.name}'; chain them instead."
                    )
                copied = dataclasses.field(default=field.default, metadata=field.metadata)
                own[field.name] = (field.name, hints[field.name], copied)
    namespace = {"name": name, "kinds": kinds, "__doc__": meaning, "__module__": __name__}
    title = "".join(word.title() for word in name.split("-"))
    return dataclasses.make_dataclass(title, own.values(), bases=(Preset,), frozen=True, namespace=namespace)


def refusal(first: Method, second: Method) -> str | None:
    """Why a method cannot stand behind another one, as a clause; None where it can."""
    names = [method.name for method in (first, second)]
    mixing = [isinstance(method, Mixes) for method in (first, second)]
    thinning = [isinstance(method, Thins) for method in (first, second)]
    if all(mixing):
        return "both mix examples into composites, and a composite has one mixer; use one of them"
    if all(thinning):
        return "both decide inside the epoch what is trained on; use one of them"
    if all(isinstance(method, Reshapes) for method in (first, second)):
        return "both remove channels of the model; use one of them"
    if any(mixing) and any(thinning):
        mixer, thinner = names[mixing.index(True)], names[thinning.index(True)]
        return (
            f"{thinner} decides inside the epoch on single examples, which {mixer} has put into composites before; "
            "choose with a method that decides before the epoch, such as one that draws at random"
        )
    if any(mixing) and not (first.with_composites and second.with_composites):
        return (
            f"{names[mixing.index(False)]} shows parts of single examples, and a composite's belong to several; show "
            "examples smaller instead"
        )
    if mixing[0] and not second.after_mixing:
        return f"{names[1]} works on single examples, and {names[0]} mixes them; write {names[1]} first"
    return None


def _both(one: Form, other: Form) -> Form:
    for name, value in other.parts:
        one = one.also(name, value)
    return one
