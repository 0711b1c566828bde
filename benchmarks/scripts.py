"""Do public training scripts train with leantrain after at most six changed lines, with every method, or say why not?

Eight scripts, as their authors publish them: our lines are put in and counted (a line added, removed or altered is
one). Each then trains in a process of its own on a few hundred real images, with every method that was asked for, and
must either refuse with a sentence or end well: exit code 0, a finished run, as many steps of the optimiser as losses of
leantrain, the examples of the ledger those of the run, the budget kept, and the learning rate where the script's
schedule ends. Those that resume are cut in their second epoch, resumed, and must end with the same number of examples
and the same rate as a run left alone.

    python benchmarks/scripts.py --repos DIR                               # DIR has a checkout of each, by its name
    python benchmarks/scripts.py --repos DIR --scripts mnist --methods all
    python benchmarks/scripts.py --diff                                     # our lines, and nothing else

DIR holds `pytorch-cifar`, `examples`, `vision`, `pytorch-image-models`, `accelerate`, `pytorch-lightning` and
`transformers`. Besides their own libraries they need `jsonargparse[signatures]` (LightningCLI). What makes them small
(fewer pixels and epochs, a smaller network, no download) is done to a copy once our lines are counted: `smaller` in
SCRIPTS, and _scripts.py.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _common import RESULTS, finish, markdown, parser, progress

from leantrain.data import default_root
from leantrain.methods import METHODS as REGISTERED

MOST_LINES = 6
EPOCHS, BATCH, PIXELS = 3, 16, 64
NETWORK, RATE = "shufflenet_v2_x0_5", 0.02
STOPPED = 75  # the exit code of a run that was cut
HOW, SIDE = "HOW", "SIDE"  # where the method's words go, and how many pixels
METHODS = (
    "plain",
    "mixtrain-cutmix",
    "selective-backprop",
    "infobatch",
    "budget=0.5",
    "el2n",
    "autoassist",
)
RESUMED = "random-backprop[keep=0.6]"
"""The method of a run that is cut: it leaves examples out, and always as many."""

Edit = tuple[str, str]


class Script(NamedTuple):
    """A script, and what is done to it.

    Attributes:
        file: in the folder of checkouts.
        ours: a part of a line and what stands there instead, once each; these are counted. An empty line goes.
        smaller: the same for what makes it small, wherever it occurs; these are not.
        words: its arguments, given a folder of images and a place for what it writes.
        resumes: further ones that go on from there; None where it cannot.
        rate: where the learning rate ends, as a share of the highest.
    """

    file: str
    ours: tuple[Edit, ...]
    smaller: tuple[Edit, ...]
    words: Callable[[Path, Path], list[object]]
    resumes: Callable[[Path], list[object]] | None = None
    rate: float | None = None


def imagenet_folder(data: Path, out: Path) -> list[object]:
    return [data, "-a", NETWORK, "-j", 0, "-b", BATCH, "--epochs", EPOCHS, "-p", 4, "--seed", 0, "--lr", RATE]


SCRIPTS = {
    "pytorch-cifar": Script(
        "pytorch-cifar/main.py",
        (
            ("import argparse\n", "import argparse\nimport leantrain\n"),
            (
                "T_max=200)\n",
                "T_max=200)\nlean, trainloader, scheduler = "
                f"leantrain.take_over(net, trainloader, scheduler, {HOW}, epochs=200)\n",
            ),
            (
                "outputs = net(inputs)\n        loss = criterion(outputs, targets)\n        loss.backward()",
                "loss = lean.loss(inputs)\n        outputs, targets = lean.last.logits, lean.last.targets\n"
                "        loss.backward()",
            ),
            ("in range(start_epoch, start_epoch+200):", "in lean.passes(start_epoch):"),
        ),
        (
            ("net = SimpleDLA()", "net = ShuffleNetV2(0.5)"),
            ("=200)", f"={EPOCHS})"),
            ("num_workers=2", "num_workers=0"),
            ("batch_size=128", f"batch_size={BATCH}"),
        ),
        lambda data, out: ["--lr", RATE],
        rate=0.0,
    ),
    "mnist": Script(
        "examples/mnist/main.py",
        (
            ("import argparse\n", "import argparse\nimport leantrain\n"),
            (
                "gamma=args.gamma)\n",
                "gamma=args.gamma)\n    lean, train_loader, scheduler = "
                f"leantrain.take_over(model, train_loader, scheduler, {HOW}, epochs=args.epochs)\n",
            ),
            (
                "output = model(data)\n        loss = F.nll_loss(output, target)\n",
                "loss = train_loader.lean.loss(data)\n",
            ),
            ("in range(1, args.epochs + 1):", "in lean.passes(1):"),
        ),
        (),
        lambda data, out: ["--epochs", EPOCHS, "--batch-size", BATCH],
        rate=0.7**EPOCHS,
    ),
    "imagenet": Script(
        "examples/imagenet/main.py",
        (
            ("import argparse\n", "import argparse\nimport leantrain\n"),
            (
                "    for epoch in range(args.start_epoch, args.epochs):\n",
                "    lean, train_loader, scheduler = "
                f"leantrain.take_over(model, train_loader, scheduler, {HOW}, epochs=args.epochs)\n"
                "    for epoch in lean.passes(args.start_epoch):\n",
            ),
            (
                "        output = model(images)\n        loss = criterion(output, target)\n\n",
                "        loss = train_loader.lean.loss(images)\n"
                "        output, target = train_loader.lean.last.logits, train_loader.lean.last.targets\n\n",
            ),
        ),
        (("224", SIDE), ("256)", f"{SIDE})"), ("step_size=30", "step_size=1")),
        imagenet_folder,
        lambda out: ["--resume", out / "checkpoint.pth.tar"],
        rate=0.1**EPOCHS,
    ),
    "torchvision": Script(
        "vision/references/classification/train.py",
        (
            ("import presets\n", "import leantrain\nimport presets\n"),
            (
                "    model_ema = None\n    if args.model_ema:\n",
                "    lean, data_loader, lr_scheduler = leantrain.take_over(\n"
                f"        model, data_loader, lr_scheduler, {HOW}, epochs=args.epochs, criterion=criterion)\n"
                "    model_ema = None\n    if args.model_ema:\n",
            ),
            (
                "            output = model(image)\n            loss = criterion(output, target)\n\n        optimizer",
                "            loss = data_loader.lean.loss(image)\n"
                "            output, target = data_loader.lean.last.logits, data_loader.lean.last.targets\n"
                "\n        optimizer",
            ),
            ("in range(args.start_epoch, args.epochs):", "in lean.passes(args.start_epoch):"),
        ),
        (("weights_only=True)", "weights_only=False)"),),  # else it refuses the arguments in its own checkpoint
        lambda data, out: [
            *("--data-path", data, "--model", NETWORK, "--device", "cpu", "-b", BATCH, "--epochs", EPOCHS, "-j", 0),
            *("--train-crop-size", SIDE, "--val-crop-size", SIDE, "--val-resize-size", SIDE, "--print-freq", 4),
            *("--lr-scheduler", "cosineannealinglr", "--label-smoothing", 0.1, "--lr", RATE, "--output-dir", out),
        ],
        lambda out: ["--resume", out / "checkpoint.pth"],
        rate=0.0,
    ),
    "timm": Script(
        "pytorch-image-models/train.py",
        (
            ("import argparse\n", "import argparse\nfrom leantrain.integrations.timm import take_over\n"),
            (
                "    results = []\n    try:\n        for epoch in range(start_epoch, num_epochs):\n",
                "    lean, loader_train, lr_scheduler = take_over(\n"
                f"        model, loader_train, lr_scheduler, {HOW}, epochs=num_epochs, criterion=train_loss_fn, "
                "updates=updates_per_epoch)\n"
                "    results = []\n    try:\n        for epoch in lean.passes(start_epoch):\n",
            ),
            (
                "result = task(input, target)\n                _loss = result['loss']",
                "_loss = loader.lean.loss(input)\n"
                "                result = {'loss': _loss, 'output': loader.lean.last.logits}",
            ),
        ),
        (),
        lambda data, out: [
            *("--data-dir", data, "--val-split", "val", "--model", "test_resnet", "--num-classes", 10),
            *("--input-size", 3, SIDE, SIDE, "-b", BATCH, "--epochs", EPOCHS, "--warmup-epochs", 0, "--device", "cpu"),
            *("--lr", 0.05, "--min-lr", 0, "-j", 0, "--output", out, "--experiment", "run", "--log-interval", 4),
        ],
        lambda out: ["--resume", out / "run" / "last.pth.tar"],
        rate=0.0,
    ),
    "accelerate": Script(
        "accelerate/examples/cv_example.py",
        (
            ("import argparse\n", "import argparse\nfrom leantrain.integrations.accelerate import take_over\n"),
            (
                "    # Now we train the model\n    for epoch in range(num_epochs):\n",
                f"    lean, train_dataloader, lr_scheduler = take_over(model, train_dataloader, lr_scheduler, {HOW}, "
                "epochs=num_epochs, prepare=lambda b: b.with_inputs((b.inputs.to(mean.device) - mean) / std))\n"
                "    # Now we train the model\n    for epoch in lean.passes():\n",
            ),
            (
                '            inputs = (batch["image"] - mean) / std\n            outputs = model(inputs)\n'
                '            loss = torch.nn.functional.cross_entropy(outputs, batch["label"])\n',
                '            loss = lean.loss(batch["image"])\n',
            ),
        ),
        (
            ('"resnet50d", pretrained=True', '"test_resnet", pretrained=False'),
            ('"image_size": 224', f'"image_size": {SIDE}'),
            ('"batch_size": 64', f'"batch_size": {BATCH}'),
            ("num_workers=4", "num_workers=0"),
        ),
        lambda data, out: ["--data_dir", data / "flat", "--cpu"],
        rate=0.0,
    ),
    "lightning": Script(
        "pytorch-lightning/examples/pytorch/domain_templates/imagenet.py",
        (
            ("import os\n", "import os\nfrom leantrain.integrations.lightning import LeanCallback\n"),
            ('            "callbacks": [\n', f'            "callbacks": [\n                LeanCallback({HOW}),\n'),
            (
                "        output = self.model(images)\n        loss_train = F.cross_entropy(output, target)\n",
                "        loss_train = self.lean.loss(batch)\n"
                "        output, target = self.lean.last.logits, self.lean.last.targets\n",
            ),
        ),
        (("224", SIDE), ("256)", f"{SIDE})"), ("epoch // 30", "epoch // 1")),
        lambda data, out: [
            *("fit", "--model.data_path", data, "--model.batch_size", BATCH, "--model.workers", 0),
            *("--model.arch", NETWORK, "--model.lr", RATE),
            *("--trainer.max_epochs", EPOCHS, "--trainer.accelerator", "cpu", "--trainer.default_root_dir", out),
        ],
        lambda out: ["--ckpt_path", newest(out / "checkpoints")],
        rate=0.1**EPOCHS,
    ),
    "transformers": Script(
        "transformers/examples/pytorch/image-classification/run_image_classification.py",
        (
            ("import evaluate\n", "import evaluate\nfrom leantrain.integrations.transformers import LeanTrainer\n"),
            ("    trainer = Trainer(\n", f"    trainer = LeanTrainer(\n        {HOW},\n"),
        ),
        (),
        lambda data, out: [
            *(
                "--train_dir",
                data / "train",
                "--validation_dir",
                data / "val",
                "--model_name_or_path",
                data / "network",
            ),
            *("--output_dir", out, "--do_train", "--do_eval", "--remove_unused_columns", "False", "--use_cpu"),
            *("--num_train_epochs", EPOCHS, "--per_device_train_batch_size", BATCH, "--learning_rate", 0.01),
            *("--save_strategy", "epoch", "--eval_strategy", "epoch", "--report_to", "none", "--logging_steps", 4),
            *("--ignore_mismatched_sizes", "--cache_dir", data / "cache"),
        ],
        lambda out: ["--resume_from_checkpoint", newest(out)],
        rate=0.0,
    ),
}


def main() -> None:
    arguments = _arguments()
    result = {} if arguments.quick else earlier()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = place / "data"
        make_images(data, arguments.limit, arguments.side)
        for name in arguments.scripts:
            script = SCRIPTS[name]
            text = (arguments.repos / script.file).read_text()
            lines = changed_lines(text, edited(text, script, "plain"))
            runs = result.get(name, {}).get("runs", {})
            for how in arguments.methods:
                column = how if arguments.side == PIXELS else f"{how}, {arguments.side} px"
                runs[column] = run(place / "run", arguments, script, how, data)
            if script.resumes is not None and not arguments.no_resume:
                runs["resume"] = run_cut(place / "run", arguments, script, data)
            result[name] = {"lines": lines, "runs": runs}
    result = {name: result[name] for name in SCRIPTS if name in result}
    columns = list(dict.fromkeys(how for one in result.values() for how in one["runs"] if how != "resume"))
    columns.append("resume")
    rows = [
        [name, one["lines"], *(said(one["runs"][how]) if how in one["runs"] else "–" for how in columns)]
        for name, one in result.items()
    ]
    for name in ("repos", "keep", "diff", "scripts", "methods", "side", "no_resume"):  # of this call; the table says
        delattr(arguments, name)
    count = sum(len(one["runs"]) for one in result.values())
    finish("scripts", arguments, markdown(("script", "changed lines", *columns), rows), result, n=count)
    wrong = any(found["wrong"] for one in result.values() for found in one["runs"].values())
    sys.exit(wrong or any(one["lines"] > MOST_LINES for one in result.values()))


def earlier() -> dict[str, Any]:
    """What was found before, of which the runs that are made again are replaced: all of them take half an hour."""
    file = RESULTS / "scripts.json"
    found: dict[str, Any] = json.loads(file.read_text())["result"] if file.exists() else {}
    return found


def edited(text: str, script: Script, how: str) -> str:
    """The script with our lines, each of which must find its place once."""
    words = how if "=" in how.split("[")[0] else f'method="{how}"'
    for old, new in script.ours:
        if text.count(old) != 1:
            raise SystemExit(f"{script.file} has {text.count(old)} places that read {old!r}; it is another version.")
        text = text.replace(old, new.replace(HOW, words))
    return text


def changed_lines(before: str, after: str) -> int:
    """How many lines were added, removed or altered; an altered one counts once."""
    codes = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in codes if kind != "equal")


def run(out: Path, arguments: argparse.Namespace, script: Script, how: str, data: Path) -> dict[str, Any]:
    """Train with a method, and what was wrong with it, if anything."""
    shutil.rmtree(out, ignore_errors=True)
    code, note = start(out, arguments, script, how, data)
    return judged(f"{script.file} with {how}", script, code, note, out)


def run_cut(out: Path, arguments: argparse.Namespace, script: Script, data: Path) -> dict[str, Any]:
    """Train, cut in the second epoch, and go on; it must end as one that was left alone."""
    shutil.rmtree(out, ignore_errors=True)
    whole = start(out, arguments, script, RESUMED, data)[1]
    shutil.rmtree(out, ignore_errors=True)
    code, cut = start(out, arguments, script, RESUMED, data, stop_at=whole["steps"] // 2 + 1)
    assert script.resumes is not None
    if code != STOPPED:
        return judged(f"{script.file}, to be cut", script, code, cut, out)
    code, note = start(out, arguments, script, RESUMED, data, more=script.resumes(out))
    found = judged(f"{script.file}, resumed", script._replace(rate=None), code, note, out)
    for name in ("examples", "epochs", "rate"):
        if note.get(name) != whole.get(name):
            found["wrong"].append(f"{name} is {note.get(name)} after a resume, {whole.get(name)} without")
    if not note.get("steps", 0) < whole["steps"]:
        found["wrong"].append(f"{note.get('steps')} steps after a resume, {whole['steps']} without: it began anew")
    return found


def start(
    out: Path,
    arguments: argparse.Namespace,
    script: Script,
    how: str,
    data: Path,
    *,
    stop_at: int | None = None,
    more: list[object] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Run a small copy of the script, beside the other files of its folder; its exit code and what it noted."""
    home = (arguments.repos / script.file).parent
    copy = out.with_name("script")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(home, copy)
    out.mkdir(exist_ok=True)
    text = edited((arguments.repos / script.file).read_text(), script, how)
    for old, new in script.smaller:
        text = text.replace(old, new.replace(SIDE, str(arguments.side)))
    file, note = copy / Path(script.file).name, out / "note.json"
    file.write_text(text)
    note.unlink(missing_ok=True)
    words = [sys.executable, Path(__file__).with_name("_scripts.py"), "--note", note, "--limit", arguments.limit]
    words += ["--stop-at", stop_at] if stop_at is not None else []
    words += [file, *script.words(data, out), *(more or [])]
    words = [arguments.side if word == SIDE else word for word in words]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(data / "cache"),
    }
    began = time.monotonic()
    with open(out / "log.txt", "w") as log:
        done = subprocess.run(list(map(str, words)), cwd=out, env=environment, stdout=log, stderr=subprocess.STDOUT)
    progress(f"{script.file} with {how}: exit code {done.returncode} after {time.monotonic() - began:.0f} s")
    if arguments.keep is not None:
        kept = (
            arguments.keep / f"{Path(script.file).parent.as_posix().replace('/', '-')}-{how}{'-more' * bool(more)}.txt"
        )
        arguments.keep.mkdir(exist_ok=True, parents=True)
        shutil.copy(out / "log.txt", kept)
    found = json.loads(note.read_text()) if note.exists() else {}
    return done.returncode, found


def judged(what: str, script: Script, code: int, note: dict[str, Any], out: Path) -> dict[str, Any]:
    """What a run noted, with everything that is wrong with it."""
    wrong: list[str] = []
    if note.get("refused") is None:
        if code:
            wrong.append(f"exit code {code}: {(out / 'log.txt').read_text().strip().splitlines()[-1:]}")
        elif not note.get("finished"):
            wrong.append(f"the run is not finished, but at {note.get('progress')}")
        else:
            wrong += miscounted(script, note)
    for one in wrong:
        progress(f"  WRONG, {what}: {one}")
    return {**note, "wrong": wrong}


def miscounted(script: Script, note: dict[str, Any]) -> list[str]:
    """What of a finished run does not add up."""
    wrong = []
    if note["steps"] != note["losses"]:
        wrong.append(f"{note['steps']} steps for {note['losses']} losses")
    if note["examples"] != note["recorded"]:
        wrong.append(f"{note['examples']} examples, but {note['recorded']} in the ledger")
    if note["budget"] is not None and not 0.9 < note["cost_share"] / note["budget"] <= 1.01:
        wrong.append(f"{note['cost_share']:.3f} of the cost spent, with a budget of {note['budget']}")
    share = note["rate"] / note["highest_rate"]
    if script.rate is not None and abs(share - script.rate) > 1e-3:
        wrong.append(f"the learning rate ends at {share:.4f} of the highest, not at {script.rate:.4f}")
    return wrong


def said(found: dict[str, Any]) -> str:
    """A cell of the table."""
    if found["wrong"]:
        return "**wrong**: " + "; ".join(found["wrong"])
    return "works" if found.get("refused") is None else f"refused: {found['refused']}"


def make_images(data: Path, limit: int, side: int) -> None:
    """EuroSAT pictures as the folders that scripts read, and a small network as `from_pretrained` reads it."""
    from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

    source = default_root() / "eurosat10k"
    for ours, theirs, most in (("train", "train", limit), ("val", "test", limit // 2), ("flat", "train", limit)):
        for folder in sorted((source / theirs).iterdir()):
            place = data / ours if ours == "flat" else data / ours / folder.name
            place.mkdir(parents=True, exist_ok=True)
            for picture in sorted(folder.iterdir())[: most // 10]:
                shutil.copy(picture, place / picture.name)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10)
    ResNetForImageClassification(config).save_pretrained(data / "network")
    ConvNextImageProcessor(size={"shortest_edge": side}).save_pretrained(data / "network")


def newest(folder: Path) -> Path:
    """The checkpoint that was written last."""
    found = [file for file in folder.glob("*") if file.suffix == ".ckpt" or file.name.startswith("checkpoint-")]
    return max(found, key=lambda file: file.stat().st_mtime_ns)


def our_lines() -> str:
    """Every script's lines of ours, as they read once they are in; of an altered line, the part that is."""
    parts = []
    for name, script in SCRIPTS.items():
        parts.append(f"{name}: {script.file}")
        for old, new in script.ours:
            before = [line.strip() for line in old.splitlines()]
            after = (line.strip() for line in new.replace(HOW, 'method="infobatch"').splitlines())
            parts += [f"    {line}" for line in after if line not in before]
    return "\n".join(parts)


def _arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--repos", type=Path, help="a folder with the checkouts")
    options.add_argument("--scripts", default=",".join(SCRIPTS), help="which of them, by name (default: all)")
    options.add_argument("--methods", default=",".join(METHODS), help="which methods, or all (default: seven)")
    options.add_argument("--limit", type=int, default=160, help="images to train on (default: 160)")
    options.add_argument(
        "--side", type=int, default=PIXELS, help=f"their pixels, where a script asks (default: {PIXELS})"
    )
    options.add_argument("--no-resume", action="store_true", help="leave those out that are cut and resumed")
    options.add_argument("--keep", type=Path, help="where to keep what the scripts printed")
    options.add_argument("--diff", action="store_true", help="print our lines and end")
    arguments = options.parse_args()
    if arguments.diff:
        with contextlib.suppress(BrokenPipeError):
            print(our_lines())
        sys.exit()
    if arguments.repos is None:
        options.error("--repos is required: a folder with the checkouts")
    arguments.methods = sorted(REGISTERED) if arguments.methods == "all" else arguments.methods.split(",")
    arguments.scripts = arguments.scripts.split(",")
    arguments.repos = arguments.repos.resolve()
    if arguments.quick:
        arguments.scripts, arguments.methods = arguments.scripts[:1], arguments.methods[:1]
    return arguments


if __name__ == "__main__":
    main()
