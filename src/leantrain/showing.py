"""Showing: a batch goes to the model in its form, and an answer for every example comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.batch import Batch
from leantrain.channels import Channels
from leantrain.clock import Stopwatch
from leantrain.errors import LeanError
from leantrain.eval_mode import eval_mode, trial
from leantrain.forms import FORMS, Answer, Ask, Attached, Form, FormKind
from leantrain.ledger import Ledger
from leantrain.methods import Chain, Offers
from leantrain.mixing import Composite
from leantrain.plan import Plan
from leantrain.ranks import unsynchronised
from leantrain.slimming import Slim
from leantrain.split import Split


class Presenter:
    """Shows batches to a model in the forms that a method uses, each of which is checked against the model at once.

    Args:
        model: may be replaced by a wrapper of itself later.
        method: whose forms these are.
        example: gives a small batch of inputs as the model sees them; asked only where a form is used.
        split_layer: the layer that makes the last feature map, where the user names it.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Chain,
        example: Callable[[], Any],
        split_layer: str | None,
        ledger: Ledger,
        seed: int,
        clock: Stopwatch,
    ) -> None:
        self.model = model
        self.side = 0
        """Pixels along an image's shorter side; 0 where every example is shown whole, so that nobody has looked."""
        self.note: str | None = None
        """What to know before training of how the model takes the method's ways of showing."""
        self.offer: tuple[Form, ...] = ()
        """The way of showing that the model takes, of those that a method offers."""
        self.forms: tuple[Form, ...] = ()
        """Every form but whole that the model may be shown examples in, as it takes them."""
        self._method = method
        self._kinds: dict[str, FormKind] = {}
        if not method.shows:
            return
        inputs = example()
        if isinstance(inputs, Tensor) and inputs.ndim == 4:
            self.side = min(inputs.shape[-2:])
        attached = Attached(model, inputs, method.mixer, split_layer, ledger, seed, clock)
        refused: str | None = None  # no exception, whose traceback would keep all of this alive
        offers = method.offers(self.side)
        for number, offer in enumerate(offers, start=1):
            is_last = number == len(offers)
            if not offer and not is_last:
                refused = f"images of {self.side} pixels are too small to be shown smaller."
                continue
            try:
                self._take(method.forms(self.side, offer), attached)
                break
            except LeanError as error:
                self._close()
                if is_last:
                    raise  # what the model cannot take is said now
                refused = refused or str(error)
        self.offer = offer
        if not offer and (offering := [str(one) for _, one in method.having(Offers)]):
            self.note = (
                f"{' + '.join(offering)} shows no example smaller, so its budget pays for fewer passes: {refused}"
            )
        elif self.split is not None:
            self.note = self.split.warning()

    def _take(self, forms: tuple[Form, ...], attached: Attached) -> None:
        """Show examples in these forms, each of which the model must take."""
        for name in dict.fromkeys(name for form in forms for name, _ in form.parts):
            self._kinds[name] = FORMS[name](attached)
        self.forms = tuple(dict.fromkeys(form.fitted(self._kinds) for form in forms))
        for form in self.forms:
            self._try(form.alone(), attached.example)

    def _close(self) -> None:
        """Leave the model as if none of the forms had been tried."""
        for kind in self._kinds.values():
            kind.close()
        self._kinds, self.forms = {}, ()

    def _try(self, form: Form, inputs: Any) -> None:
        """Refuse a form of several kinds that the model takes one by one, but not together."""
        if len(form.parts) < 2:
            return
        index = torch.arange(len(inputs), device=inputs.device)
        batch = Batch((inputs, index), index, None, form, 0, 0, total=float(len(index)), cost=0.0)
        try:
            with trial(self.model):
                self.answer(batch)
        except (RuntimeError, ValueError, AssertionError) as error:
            shown = " and ".join(f"{name} {value:g}" for name, value in form.parts)
            raise LeanError(
                f"{self._method} shows images {shown}, which the model cannot take ({str(error).splitlines()[0]}); "
                "choose larger sizes."
            ) from None

    @property
    def split(self) -> Split | None:
        """Where the model is split for composites; None where it is not."""
        splits = [kind.split for kind in self._kinds.values() if isinstance(kind, Composite)]
        return splits[0] if splits else None

    @property
    def leaves_out(self) -> bool:
        """Whether some batches leave parameters of the model without a gradient."""
        return any(kind.leaves_out for kind in self._kinds.values())

    @property
    def channels(self) -> Channels | None:
        """The channels that a method may remove; None where none does."""
        slim = self._kinds.get(Slim.name)
        return slim.channels if isinstance(slim, Slim) else None

    def fitted(self, plan: Plan) -> Plan:
        """The plan with the nearest forms that the model takes."""
        for name, _ in (part for form in plan.forms for part in form.parts):
            if name not in self._kinds:
                raise LeanError(
                    f"the plan shows examples in the form '{name}', but no method of {self._method} declares it; "
                    "add it to what its forms() gives."
                )
        return dataclasses.replace(plan, forms=tuple(form.fitted(self._kinds) for form in plan.forms))

    def answer(self, batch: Batch) -> Answer:
        """The model's answer to every example of the batch."""
        ask: Ask = self._ask_model
        for name, value in reversed(batch.form.parts):
            ask = functools.partial(self._kinds[name].show, value=value, batch=batch, ask=ask)
        return ask(batch.inputs)

    @torch.no_grad()
    def look(self, batch: Batch, *, in_step: bool) -> tuple[Tensor, Tensor]:
        """The clean losses of a batch, and which are correct, from a model that stays as it is.

        Args:
            in_step: whether all ranks look at a batch now, so that they can agree on the model's buffers first.
        """
        if isinstance(batch.inputs, Tensor) and batch.inputs.dtype == torch.uint8:
            raise LeanError(
                f"the inputs of a batch are bytes, and {self._method} looks at them before the loop can convert them; "
                "give what the loop does to a batch as attach(prepare=…)."
            )
        with eval_mode(self.model), contextlib.nullcontext() if in_step else unsynchronised(self.model):
            logits = self.answer(batch).logits.float()
        return F.cross_entropy(logits, batch.targets, reduction="none"), logits.argmax(1) == batch.targets

    def _ask_model(self, inputs: Any) -> Answer:
        output = self.model(inputs)
        logits = getattr(output, "logits", output)  # Hugging Face's models answer with an object
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            raise LeanError(
                f"the model answered with a {type(output).__name__}, but leantrain needs one tensor of logits "
                "(examples, classes); wrap the model so that it gives that."
            )
        return Answer(logits, auxiliary=_auxiliary(output))


def _auxiliary(output: Any) -> tuple[Tensor, ...]:
    """The logits of auxiliary heads, as torchvision's GoogLeNet and Inception name them in their answers."""
    names = (name for name in getattr(output, "_fields", ()) if name.startswith("aux_logits"))
    return tuple(logits for name in names if (logits := getattr(output, name)) is not None)
