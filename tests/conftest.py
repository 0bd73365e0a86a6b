"""Set-up shared by all tests: shapes are checked, one thread per worker, examples repeat."""

import hypothesis
import torch
from jaxtyping import install_import_hook

# Must run before anything imports recollect: from here on every shape in its signatures is checked at each
# call. Only tests pay for that.
install_import_hook("recollect", "beartype.beartype")

torch.set_num_threads(1)

# Machines are noisy, so no deadline; a failure must come back on the next run, so no fresh randomness.
hypothesis.settings.register_profile("recollect", deadline=None, derandomize=True)
hypothesis.settings.load_profile("recollect")
