"""Inspect: the pictures are there, and the numbers in them are those that a plain loop over examples finds."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from leantrain import data
from leantrain.cli import cli
from leantrain.errors import LeanError
from leantrain.inspect import inspect_run
from leantrain.inspect.record import Record, loss_distribution
from leantrain.inspect.study import second_rank
from leantrain.mixing import DRAWS, strip_owner
from leantrain.models import build
from leantrain.rng import generator, uniform
from leantrain.run.folder import RunFolder
from leantrain.run.loop import Run
from leantrain.run.setup import load_images
from leantrain.run.signals import Interrupted
from program import rows

EPOCHS = {"fig2b-epochs", "fig5a-epochs", "fig5b-epochs", "fig11-epochs"}
ALONE = {"fig2b", "fig5a", "fig5b", "fig5c", "fig6", "fig7", "fig8", "fig10b", "fig11", "fig12", "fig14", "gallery"}
EVERY = ALONE | EPOCHS
THRESHOLDED = {"fig5c", "fig6", "fig7", "fig8", "fig10b"}
SMALL = ("--width", 8, "--batch-size", 64, "--threads", 1, "--precision", "fp32")
FEW = ("--examples", 40, "--pairings", 2)


def call(*arguments: object) -> None:
    cli.main(args=[str(a) for a in arguments], standalone_mode=False)


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "inspect.json").read_text())
    return content


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mixtrain"
    kept = ("--keep-weights", 4)
    call("train", *SMALL, "--train-limit", 501, "--epochs", 8, "--method", "mixtrain-cutmix", *kept, "--out", out)
    return out


@pytest.fixture(scope="module")
def seen(run: Path) -> dict[str, Any]:
    call("inspect", run, "--pairings", 3)
    return read(run / "inspect")


@pytest.fixture(scope="module")
def said(run: Path) -> tuple[str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        call("inspect", run, "--out", run / "few", *FEW, "--seed", 3)
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def few(run: Path, said: tuple[str, str]) -> Path:
    return run / "few"


@pytest.fixture(scope="module")
def model(run: Path) -> torch.nn.Module:
    model = build("resnet8", classes=10, channels=1, image_size=32, width=8)
    model.load_state_dict(load_file(run / "model.safetensors"))
    return model.eval()


@pytest.fixture(scope="module")
def images() -> data.ImageSet:
    return data.load("digits", train_limit=501)


def pixels(images: data.ImageSet) -> torch.Tensor:
    """Normalised by hand."""
    assert isinstance(images.train, data.MemoryImages)
    values = images.train.pixels.permute(0, 3, 1, 2).double() / 255
    return ((values - torch.tensor(images.mean)) / torch.tensor(images.std)).float()


def history(run: Path) -> list[dict[str, Any]]:
    return [dict(np.load(path)) for path in sorted((run / "history").iterdir())]


def thresholds(run: Path) -> list[dict[str, float] | None]:
    """For every epoch the thresholds its losses were judged by: means of all unmixed losses of the epochs before it."""
    sums = {True: [0.0, 0], False: [0.0, 0]}
    found: list[dict[str, float] | None] = []
    for epoch in history(run):
        if sums[True][1] and sums[False][1]:
            right, wrong = (sums[kind][0] / sums[kind][1] for kind in (True, False))
            found.append({"L_corr": right, "L_mid": (right + wrong) / 2, "L_incorr": wrong})
        else:
            found.append(None)
        for loss, correct, form in zip(epoch["loss"], epoch["correct"], epoch["constituents"], strict=True):
            if form == 1:
                sums[bool(correct)][0] += float(loss)
                sums[bool(correct)][1] += 1
    return found


# -- what is written ---------------------------------------------------------------------------------------------------


def test_every_figure_is_a_picture_of_900_pixels(run: Path, seen: dict[str, Any]) -> None:
    assert seen["figures"].keys() == EVERY
    assert seen["notes"] == []
    for name in EVERY:
        with Image.open(run / "inspect" / f"{name}.png") as picture:
            assert picture.format == "PNG"
            assert picture.width == 900
            assert picture.height > 300
            colours = picture.convert("RGB").getcolors(1 << 20)
            assert colours is None or len(colours) > 50


def test_the_studies_are_repeated_at_every_epoch_whose_weights_were_kept(run: Path, seen: dict[str, Any]) -> None:
    assert sorted(path.name for path in (run / "weights").iterdir()) == [f"epoch-{e:04d}.safetensors" for e in (3, 7)]
    shown = seen["figures"]
    for name in EPOCHS:
        assert shown[name]["epochs"] == [3, 7]
    # The last weights are the model's, so the last points are those of the figures of the model at the end.
    for way, row in shown["fig2b"]["rows"].items():
        share = row["both"]["mean"] + row["one"]["mean"] / 2
        assert shown["fig2b-epochs"]["share"][way][-1] == pytest.approx(share)
    for way, row in shown["fig5b"]["kept"].items():
        assert shown["fig5b-epochs"]["share"][way][-1] == pytest.approx(row["mean"])
    for way, places in shown["fig11"]["within"].items():
        assert shown["fig11-epochs"]["share"][way][-1] == pytest.approx(places[-1]["mean"])
    way = shown["fig5a-epochs"]["way"]
    assert shown["fig5a-epochs"]["change"][-1] == pytest.approx(shown["fig5a"]["change"][way])
    assert shown["fig5a-epochs"]["loss"][0] != shown["fig5a-epochs"]["loss"][1]


def test_fig10b_and_14_are_what_the_epochs_cost(run: Path, seen: dict[str, Any]) -> None:
    saved, cost = seen["figures"]["fig10b"], [row["cost"] / 501 for row in rows(run)]
    for one, three, spent in zip(saved["region1"], saved["region3"], cost, strict=True):
        assert one + three == pytest.approx(1 - spent, abs=0.003)  # but for an odd one out
    assert seen["figures"]["fig14"]["cost"] == pytest.approx(cost)
    assert seen["figures"]["fig14"]["epochs"] == [[e, e] for e in range(8)]


def test_storage_is_a_share_of_the_images_own_bytes(seen: dict[str, Any]) -> None:
    storage = seen["storage"]
    assert storage["image_bytes"] == 32 * 32
    assert 10 <= storage["bytes_per_example"] <= 60
    assert storage["overhead"] == pytest.approx(storage["bytes_per_example"] / 1024)


def test_the_same_seed_gives_the_same_files_and_another_one_does_not(few: Path, run: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 3), ("other", 4)):
        call("inspect", run, "--out", tmp_path / name, *FEW, "--seed", seed)
    assert len(list(few.iterdir())) == 1 + len(EVERY)
    for path in few.iterdir():
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes(), path.name
    one, other = read(few), read(tmp_path / "other")
    assert one["figures"]["gallery"]["composites"] != other["figures"]["gallery"]["composites"]
    assert one["figures"]["fig6"] == other["figures"]["fig6"]


def test_the_command_says_a_line_per_figure_and_where_they_are(few: Path, said: tuple[str, str]) -> None:
    out, err = said
    assert out.strip() == str(few)
    assert {line.split(".png")[0] for line in err.splitlines()} == EVERY


# -- from what the run wrote down --------------------------------------------------------------------------------------


def test_fig5c_counts_the_last_epoch_s_losses_by_region(run: Path, seen: dict[str, Any]) -> None:
    numbers, last, limits = seen["figures"]["fig5c"], history(run)[-1], thresholds(run)[-1]
    assert limits is not None
    assert numbers["epoch"] == 7
    for name, value in limits.items():
        assert numbers[name] == pytest.approx(value, rel=2e-3)  # the history rounds to 16 bits
    whole = last["constituents"] == 1
    assert sum(numbers["unmixed_correct"]) == (whole & last["correct"]).sum()
    assert sum(numbers["unmixed_wrong"]) == (whole & ~last["correct"]).sum()
    assert sum(numbers["mixed"]) == (last["constituents"] == 2).sum()
    assert sum(numbers["unmixed_in_region"].values()) == whole.sum()
    assert numbers["unmixed_in_region"]["3"] == (last["loss"][whole].astype(float) > numbers["L_incorr"]).sum()


def test_fig5c_shows_the_epoch_that_is_asked_for(run: Path) -> None:
    numbers = loss_distribution(Record.read(RunFolder(run)), epoch=2)
    assert numbers["epoch"] == 2
    assert numbers["L_mid"] == rows(run)[3]["L_mid"]  # decided on when the next epoch was planned


def test_fig6_is_the_share_below_l_mid(run: Path, seen: dict[str, Any]) -> None:
    numbers, limits = seen["figures"]["fig6"], thresholds(run)
    assert numbers["epochs"] == [1, 2, 3, 4, 5, 6, 7]
    for place, number in enumerate(numbers["epochs"]):
        epoch, limit = history(run)[number], limits[number]
        assert limit is not None
        below = {True: 0, False: 0}
        total = {True: 0, False: 0}
        for loss, correct, form in zip(epoch["loss"], epoch["correct"], epoch["constituents"], strict=True):
            if form == 1:
                total[bool(correct)] += 1
                below[bool(correct)] += float(loss) < limit["L_mid"]
        for kind, name in ((True, "correct"), (False, "wrong")):
            assert numbers[name][place] == total[kind]
            share = below[kind] / total[kind] if total[kind] else None
            # One example may lie between the exact threshold and the one from rounded losses.
            assert numbers[f"{name}_below"][place] == pytest.approx(share, abs=1.01 / max(1, total[kind]))


def test_fig7_is_what_the_history_says_was_mixed(run: Path, seen: dict[str, Any]) -> None:
    numbers = seen["figures"]["fig7"]
    epochs = history(run)
    assert numbers["epochs"] == list(range(8))
    for place, epoch in enumerate(epochs):
        mixed = epoch["constituents"] == 2
        for region in (1, 3):
            assert numbers[f"mixed_region{region}"][place] == pytest.approx(
                (mixed & (epoch["0.reason"] == region)).mean()
            )
        if place:
            before, now = epochs[place - 1]["0.reason"] > 0, epoch["0.reason"] > 0
            assert numbers["moved_to_mixed"][place] == pytest.approx((~before & now).mean())
            assert numbers["moved_to_unmixed"][place] == pytest.approx((before & ~now).mean())
    assert max(numbers["mixed_region1"]) > 0.2


def test_fig8_is_the_time_above_l_incorr(
    run: Path, seen: dict[str, Any], model: torch.nn.Module, images: data.ImageSet
) -> None:
    numbers, epochs = seen["figures"]["fig8"], history(run)
    limits = [*(row["L_incorr"] for row in rows(run)[2:]), seen["figures"]["fig5c"]["L_incorr"]]
    with torch.no_grad():
        correct = (model(pixels(images)).argmax(1) == images.train.targets).tolist()
    edges = numbers["edges"]
    assert edges[0] == 0 and edges[-2] <= len(limits) < edges[-1] and numbers["epochs"] == len(limits)
    counts = {True: [0] * (len(edges) - 1), False: [0] * (len(edges) - 1)}
    never = 0
    for example in range(501):
        inside = unmixed = 0
        for epoch, limit in zip(epochs[1:], limits, strict=True):
            if epoch["constituents"][example] == 1:
                unmixed += 1
                inside += float(epoch["loss"][example]) > limit
        if unmixed:
            counts[correct[example]][inside // edges[1]] += 1
        else:
            never += 1
    assert numbers["correct"]["counts"] == counts[True]
    assert numbers["wrong"]["counts"] == counts[False]
    assert numbers["never_unmixed"] == never
    assert sum(counts[True][1:]) > 0


def test_fig12_is_the_metrics_loss(run: Path, seen: dict[str, Any]) -> None:
    assert seen["figures"]["fig12"]["loss"] == [row["train_loss"] for row in rows(run)]


# -- from the model ----------------------------------------------------------------------------------------------------


def test_shares_of_pairs_add_up_to_one(seen: dict[str, Any]) -> None:
    shares = seen["figures"]["fig2b"]["rows"]
    assert shares.keys() == {"alone", "cutmix", "cutmix_split", "mixup", "zeropatch"}
    for name, row in shares.items():
        assert sum(row[kind]["mean"] for kind in ("both", "one", "none")) == pytest.approx(1), name
    assert shares["alone"]["both"]["mean"] == 1
    assert shares["cutmix_split"]["both"]["mean"] > shares["cutmix"]["both"]["mean"]  # what the paper is about


def test_fig2b_5a_5b_and_11_are_what_a_loop_over_pairs_finds(
    run: Path, tmp_path: Path, model: torch.nn.Module, images: data.ImageSet
) -> None:
    call("inspect", run, "--out", tmp_path, "--examples", 24, "--pairings", 2, "--seed", 9)
    figures = read(tmp_path)["figures"]
    everything, labels = pixels(images), images.train.targets.tolist()
    chosen = torch.randperm(501, generator=generator(9, "inspect", "examples"))[:24].sort().values.tolist()

    def answer(picture: torch.Tensor) -> list[float]:
        with torch.no_grad():
            return list(model(picture[None])[0].tolist())

    def split_answer(picture: torch.Tensor, mask: torch.Tensor) -> list[float]:
        with torch.no_grad():
            features = model.forward_features(picture[None])[0]  # (C, 8, 8): each cell stands for 4×4 pixels
            inside = mask[::4, ::4]
            return list(model.fc(features[:, inside].mean(1)).tolist())

    def loss(scores: list[float], label: int) -> float:
        return float(torch.tensor(scores).logsumexp(0) - scores[label])

    def ask(first: int, second: int, number: int) -> dict[str, tuple[list[float], list[float]]]:
        one, two = everything[first], everything[second]
        draws = uniform(9, number, torch.tensor([first]), 2 * DRAWS, "inspect")
        theirs = strip_owner(torch.full((2, 1), 0.5), 32, 32, draws)[0] == 1
        assert int(theirs.sum()) == 512
        cut = torch.where(theirs, two, one)
        shared, blend = answer(cut), answer((one + two) / 2)
        return {
            "cutmix": (shared, shared),
            "cutmix_split": (split_answer(cut, ~theirs), split_answer(cut, theirs)),
            "mixup": (blend, blend),
            "zeropatch": (answer(one * ~theirs), answer(two * theirs)),
        }

    def hits(way: str, scores: tuple[list[float], list[float]], first: int, second: int) -> tuple[bool, bool]:
        orders = [sorted(range(10), key=lambda c: -s[c]) for s in scores]
        own = (labels[first], labels[second])
        if way in ("cutmix_split", "zeropatch"):
            return orders[0][0] == own[0], orders[1][0] == own[1]
        top = orders[0]
        if own[0] == own[1]:
            return top[0] == own[0], top[0] == own[0]
        if top[0] not in own:
            return False, False
        return (True, True) if top[1] in own else (top[0] == own[0], top[0] == own[1])

    def pairs(among: list[int], number: int, purpose: str) -> list[tuple[int, int]]:
        order = torch.randperm(len(among), generator=generator(9, "inspect", purpose, number)).tolist()
        half = len(order) // 2
        return [(among[a], among[b]) for a, b in zip(order[:half], order[half : 2 * half], strict=True)]

    right = [i for i in chosen if max(range(10), key=lambda c: answer(everything[i])[c]) == labels[i]]
    assert len(right) >= 10
    for way in ("cutmix", "cutmix_split", "mixup", "zeropatch"):
        shares: list[list[float]] = []
        for number in range(2):
            counts = [0, 0, 0]
            for a, b in pairs(right, number, "correct"):
                counts[2 - sum(hits(way, ask(a, b, number)[way], a, b))] += 1
            shares.append([n / (len(right) // 2) for n in counts])
        for place, kind in enumerate(("both", "one", "none")):
            assert figures["fig2b"]["rows"][way][kind]["each"] == pytest.approx([s[place] for s in shares]), (way, kind)

    for way in ("cutmix", "cutmix_split", "mixup"):
        mixed: dict[int, list[float]] = {i: [] for i in chosen}
        kept = []
        for number in range(2):
            found = []
            for a, b in pairs(chosen, number, "all"):
                scores = ask(a, b, number)[way]
                for i, s, hit in zip((a, b), scores, hits(way, scores, a, b), strict=True):
                    mixed[i].append(loss(s, labels[i]))
                    found += [hit] if i in right else []
            kept.append(sum(found) / len(found))
        assert figures["fig5b"]["kept"][way]["each"] == pytest.approx(kept)
        alone = {i: loss(answer(everything[i]), labels[i]) for i in chosen}
        order = sorted(chosen, key=lambda i: alone[i])
        change = [abs(alone[i] - sum(mixed[i]) / 2) for i in order]
        expected = [(change[2 * n] + change[2 * n + 1]) / 2 for n in range(12)]
        assert figures["fig5a"]["change"][way] == pytest.approx(expected, rel=1e-3, abs=1e-4)

    places = []
    for number in range(2):
        ranks = []
        for a, b in pairs(right, number, "correct"):
            top = sorted(range(10), key=lambda c: -ask(a, b, number)["cutmix"][0][c])
            if labels[a] != labels[b] and top[0] in (labels[a], labels[b]):
                ranks.append(top.index(labels[b] if top[0] == labels[a] else labels[a]) + 1)
        places.append([sum(rank <= most for rank in ranks) / len(ranks) for most in (2, 3, 4, 5)])
    assert figures["fig11"]["places"] == [2, 3, 4, 5]
    for n, row in enumerate(figures["fig11"]["within"]["cutmix"]):
        assert row["each"] == pytest.approx([shares[n] for shares in places])


def test_the_second_one_s_rank_leaves_out_pairs_that_have_none() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    labels = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])
    assert second_rank(logits, labels).tolist() == [2, 3]


def test_the_gallery_tells_each_constituent(run: Path, seen: dict[str, Any], images: data.ImageSet) -> None:
    composites = seen["figures"]["gallery"]["composites"]
    assert len(composites) == 8
    for parts in composites:
        assert [part["share"] for part in parts] == [0.5, 0.5]
        for part in parts:
            assert part["class"] == images.classes[images.train.targets[part["index"]]]
            assert part["loss"] >= 0
            assert part["mixed_loss"] >= 0


# -- other runs --------------------------------------------------------------------------------------------------------


def test_a_plain_run_has_all_figures_but_those_of_mixtrain_s_thresholds(tmp_path: Path) -> None:
    call("train", *SMALL, "--train-limit", 400, "--epochs", 5, "--out", tmp_path / "run")
    stale = tmp_path / "out" / "fig6.png"
    stale.parent.mkdir()
    stale.write_text("of an earlier run")
    call("inspect", tmp_path / "run", "--out", tmp_path / "out", "--pairings", 1)
    content = read(tmp_path / "out")
    assert content["figures"].keys() == ALONE - THRESHOLDED
    assert len(content["notes"]) == len(THRESHOLDED)
    assert all("plain" in note for note in content["notes"])
    assert content["figures"]["gallery"]["mixer"] == "CutMix"
    assert not stale.exists()


def test_without_a_history_three_figures_are_left_out_and_said_to_be(tmp_path: Path) -> None:
    method = "mixtrain-mixup[constituents=3]"
    call(
        "train",
        *SMALL,
        "--train-limit",
        100,
        "--epochs",
        3,
        "--method",
        method,
        "--schedule",
        "linear[warmup=0.15]",  # else it names one class only, and there is no figure 11
        "--no-history",
        "--out",
        tmp_path / "r",
    )
    call("inspect", tmp_path / "r", "--pairings", 1)
    content = read(tmp_path / "r" / "inspect")
    assert content["figures"].keys() == ALONE - {"fig5c", "fig6", "fig8"}
    assert [note.split()[0] for note in content["notes"]] == ["fig5c", "fig6", "fig8"]
    assert all("--no-history" in note for note in content["notes"])
    gallery = content["figures"]["gallery"]
    assert gallery["mixer"] == "MixUp"
    for parts in gallery["composites"]:
        assert len(parts) == 3
        assert sum(part["share"] for part in parts) == pytest.approx(1)


def test_a_cut_run_is_seen_by_its_checkpoint(run: Path, few: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    (tmp_path / "cut" / "result.json").unlink()
    inspect_run(tmp_path / "cut", examples=40, pairings=2, seed=3)
    content = read(tmp_path / "cut" / "inspect")
    assert content["weights"] == "checkpoint.pt"
    assert not content["finished"]
    assert content["figures"] == read(few)["figures"]


def test_a_run_cut_inside_an_epoch_has_the_thresholds_of_the_one_before(run: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(Record.read(RunFolder(run)).config, out=str(tmp_path))
    cut = Run(config, load_images(config), tmp_path)
    cut.write_config()
    for _ in range(3):
        cut.train_epoch()
    cut.stop(signal.SIGTERM)  # as the handler does; seen after the next step
    with pytest.raises(Interrupted):
        cut.train_epoch()
    seen = Record.read(RunFolder(tmp_path)).thresholds
    assert list(seen) == [1, 2]
    assert seen[2]["L_mid"] == rows(run)[3]["L_mid"]


def test_a_model_that_cannot_be_split_has_no_split_rows(tmp_path: Path) -> None:
    model = "xcit_nano_12_p16_224"  # its attention takes no mask
    call("train", "--model", model, "--train-limit", 20, "--epochs", 1, "--threads", 1, "--out", tmp_path / "run")
    call("inspect", tmp_path / "run", "--pairings", 1)
    content = read(tmp_path / "run" / "inspect")
    assert "Xcit answers from its class token" in content["notes"][0]
    assert content["figures"]["fig5a"]["change"].keys() == {"cutmix", "mixup"}
    assert not content["figures"]["gallery"]["split"]


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="holds no run"):
        call("inspect", tmp_path)


def test_a_run_without_weights_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "config.yaml", tmp_path / "config.yaml")
    with pytest.raises(LeanError, match="saved no weights yet"):
        call("inspect", tmp_path)


def test_an_epoch_that_is_not_there_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(LeanError, match="--epoch is 9, but the run's history holds epochs 1 to 8"):
        call("inspect", run, "--epoch", 9, "--examples", 4, "--pairings", 1, "--out", tmp_path)


def test_data_that_has_changed_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump({**settings, "train_limit": 500}))
    with pytest.raises(LeanError, match="is not what the run in"):
        call("inspect", tmp_path / "run")
