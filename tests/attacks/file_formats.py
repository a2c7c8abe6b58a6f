"""Is no notebook: JSON that is something else, in ways that a reader may stumble over."""
# problem: JSON
# %% notebook
path.write_bytes(b'{"cells": [{"cell_type": "code", "source": 7}], "cells": 3}')
