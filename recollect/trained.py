"""A trained model as one thing: all that answering takes but the history, saved in a directory and loaded again.

The directory holds `model.json`, `weights.safetensors`, `keys.safetensors` and, if there are any, `trees.safetensors`
and `words.safetensors`; the first has checksums of the others, and what doesn't match them isn't loaded. Nothing is
pickled.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from recollect.answering.live import Live, TrainedOn
from recollect.config import Recipe, recipe_from_json
from recollect.data.intake import Intake
from recollect.data.keys import KeyFunction
from recollect.errors import CheckpointError, OutputExistsError
from recollect.history.key_table import KeyTable
from recollect.history.visibility import Window
from recollect.model.build import SlotGroup, build_system
from recollect.model.system import RetrievalSystem
from recollect.model.trees import Trees
from recollect.predictor import Predictor
from recollect.records import TERMS, Clock, FeatureSpec

FORMAT = 8
MODEL, WEIGHTS, KEYS = "model.json", "weights.safetensors", "keys.safetensors"
TREES, WORDS_FILE = "trees.safetensors", "words.safetensors"


@dataclass(frozen=True)
class Trained:
    """A system with its recipe, the shape of its data, its keys and its clock. `classes` names those of training by
    code; `window` is how many items back it looks, None for all; `intake` makes features of raw rows, where it was
    trained on some; `trees` are None where there was nothing to grow them on, or they did harm; `pool` weighs the
    heads, None for evenly; with `terms` regressions over the newest items read words of texts and values of categories.
    """

    system: RetrievalSystem
    recipe: Recipe
    groups: tuple[SlotGroup, ...]
    specs: tuple[FeatureSpec, ...]
    classes: tuple[str, ...]
    keys: KeyFunction
    clock: Clock
    trained_on: TrainedOn
    window: int | None
    intake: Intake | None = None
    trees: Trees | None = None
    pool: tuple[float, ...] | None = None
    terms: bool = False

    @property
    def _of_words(self) -> dict[str, Tensor]:
        return {} if self.intake is None or self.intake.words is None else self.intake.words.tensors

    @property
    def predictor(self) -> Predictor:
        model = self.recipe.model
        pool = None if self.pool is None else torch.tensor(self.pool)
        return Predictor(
            self.system,
            self.recipe.train.last_temperature,
            model.retrieve,
            model.ages,
            self.trees,
            pool,
            self.specs,
        )

    def live(self, device: torch.device | str = "cpu") -> Live:
        """Ready to follow a history."""
        table = KeyTable(self.clock, key_function=self.keys.fingerprint, device=device)
        return Live(
            self.predictor,
            table,
            window=Window(items=self.window),
            trained_on=self.trained_on,
            num_classes=len(self.classes),
            columns=tuple(spec.name for spec in self.specs),
            of_inputs=(TERMS,) if self.terms else (),
        )

    def save(self, folder: Path, *, force: bool = False) -> None:
        """Complete or not at all."""
        check_replaceable(folder, MODEL, "model", force=force)
        beside = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        weights = {
            name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.system.state_dict().items()
        }
        (beside / WEIGHTS).write_bytes(save(weights))
        self.keys.save(beside / KEYS)
        if self.trees is not None:
            (beside / TREES).write_bytes(save(self.trees.state_dict()))
        if self._of_words:
            (beside / WORDS_FILE).write_bytes(save(self._of_words))
        plain = {
            "format": FORMAT,
            "recipe": asdict(self.recipe),
            "groups": [asdict(group) for group in self.groups],
            "specs": [asdict(spec) for spec in self.specs],
            "classes": list(self.classes),
            "clock": asdict(self.clock),
            "trained_on": asdict(self.trained_on),
            "window": self.window,
            "pool": self.pool,
            "terms": self.terms,
            "intake": None if self.intake is None else self.intake.to_json(),
            "sha256": {path.name: _digest(path) for path in sorted(beside.iterdir())},
        }
        text = json.dumps(plain, indent=1)
        (beside / MODEL).write_text(json.dumps({"model": plain, "sha256": _digest_of(text)}, indent=1))
        put_in_place(beside, folder)

    @staticmethod
    def load(folder: Path | str) -> "Trained":
        folder = Path(folder)
        try:
            written = json.loads((folder / MODEL).read_text())
            plain = dict(written["model"])
        except (OSError, TypeError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{folder} holds no model that can be read ({error}): give a directory that recollect train wrote"
            ) from error
        if plain.get("format") != FORMAT:
            raise CheckpointError(
                f"model {folder} has format {plain.get('format')}, this version reads {FORMAT}: "
                "use the version of recollect that wrote it"
            )
        sound = _digest_of(json.dumps(plain, indent=1)) == written.get("sha256")
        if not sound or any(_digest(folder / name) != written for name, written in plain["sha256"].items()):
            raise CheckpointError(f"model {folder} does not match its checksums: restore it from a copy, or train anew")
        recipe = recipe_from_json(plain["recipe"])
        groups = tuple(SlotGroup(**group) for group in plain["groups"])
        specs = tuple(FeatureSpec(**spec) for spec in plain["specs"])
        classes = tuple(plain["classes"])
        keys = KeyFunction.load(folder / KEYS)
        system = make_system(
            recipe,
            specs,
            specs,
            key_dim=keys.key_dim,
            num_classes=len(classes),
            label_classes=len(classes),
            has_times=True,
            groups=groups,
        )
        system.load_state_dict(load((folder / WEIGHTS).read_bytes()))
        of_words = load((folder / WORDS_FILE).read_bytes()) if WORDS_FILE in plain["sha256"] else None
        return Trained(
            system,
            recipe,
            groups,
            specs,
            classes,
            keys,
            Clock(**plain["clock"]),
            TrainedOn(**plain["trained_on"]),
            plain["window"],
            None if plain["intake"] is None else Intake.from_json(plain["intake"], of_words),
            Trees(specs, len(classes), **load((folder / TREES).read_bytes())) if TREES in plain["sha256"] else None,
            None if plain["pool"] is None else tuple(plain["pool"]),
            plain["terms"],
        )

    def fingerprint(self) -> str:
        """The same for the same answers: of the weights and all settings."""
        digest = hashlib.sha256(
            json.dumps([asdict(self.recipe), self.keys.fingerprint, self.window, self.pool, self.terms]).encode()
        )
        buffers = {} if self.trees is None else self.trees.state_dict(prefix="trees.")
        for name, tensor in sorted({**self.system.state_dict(), **buffers}.items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def make_system(
    recipe: Recipe,
    input_specs: Sequence[FeatureSpec],
    item_specs: Sequence[FeatureSpec],
    *,
    key_dim: int,
    num_classes: int,
    label_classes: int,
    has_times: bool,
    groups: Sequence[SlotGroup] | None = None,
) -> RetrievalSystem:
    """The networks of a recipe, freshly initialised. Items without times have no ages and no recency, whatever it says.

    With `groups` slots share queries, and each group says how recent it starts.
    """
    model = recipe.model
    return build_system(
        model.architecture,
        input_specs,
        item_specs if model.retrieve == "items" else [],
        key_dim=key_dim,
        num_classes=num_classes,
        label_classes=label_classes,
        num_retrieved=model.num_retrieved,
        width=model.width,
        hidden=model.hidden,
        heads=model.heads,
        latents=model.latents,
        blocks=model.blocks,
        ages=model.ages and has_times,
        pointer=model.pointer,
        differences=model.differences,
        recency=model.recency if has_times else None,
        similarity=model.similarity,
        groups=groups,
    )


def check_replaceable(folder: Path, mark: str, what: str, *, force: bool) -> None:
    """Raises if nothing may be saved here. What is replaced is removed as a whole, so that it has to be of the same
    kind, which its file `mark` tells: force is no leave to lose other files."""
    if folder.resolve() == Path.cwd():
        raise OutputExistsError(f"the working directory can't become a {what}: name a folder in it")
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / mark).is_file():
        raise OutputExistsError(f"{folder} is there and holds no {what}: choose another place, or remove it first")
    if not force:
        raise OutputExistsError(
            f"{folder} is not empty: choose another place for the {what}, or replace it (--force, or force=True)"
        )


def put_in_place(made: Path, folder: Path) -> None:
    """A folder that was made beside another takes its place. Stopped at any moment, at least one of them is whole: the
    old one is then there, or beside as `.NAME.old`."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    made.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
