"""`invoke gpus.choose`: the GPUs that work best together."""

COMMANDS = {"gpus.choose": "options:GpusChooseOptions"}
