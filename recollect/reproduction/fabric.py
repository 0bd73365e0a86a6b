"""The device that a reproduction trains on, and where its curves go."""

from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from recollect.errors import SettingError


def make_fabric(log: Path | None, name: str) -> Fabric:
    """The GPU if there is one, else the CPU; with `log`, curves for TensorBoard go to `log/name`."""
    # Not "auto": it would choose Apple's, which has no float64, and times need it.
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if log is None:
        return Fabric(accelerator=accelerator, devices=1)
    try:
        logger = TensorBoardLogger(root_dir=log, name=name.replace(" ", "-"))
    except ModuleNotFoundError as error:
        raise SettingError("logging needs tensorboard, which is not installed: pip install 'recollect[log]'") from error
    return Fabric(accelerator=accelerator, devices=1, loggers=[logger])
