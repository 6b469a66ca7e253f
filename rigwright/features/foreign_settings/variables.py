"""The inventory variable `take_over`: whether units and lines of others that set what `limits` sets are disabled."""

TYPES = {"take_over": bool}
