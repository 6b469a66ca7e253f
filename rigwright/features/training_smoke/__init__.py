"""`invoke train.smoke`: a small model is trained on the GPUs of a host."""

RESULT_KEYS = ("smoke",)

COMMANDS = {"train.smoke": "options:TrainSmokeOptions"}
