"""What all tests share: one torch thread, as `make test` runs two processes side by side."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
