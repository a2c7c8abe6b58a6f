"""Configures the root logger at debug level."""
# %%
import logging, sys
logging.basicConfig(level=logging.DEBUG, force=True, stream=sys.stdout)
log = logging.getLogger("mine")
# %% answer="affine"
def affine(x):
    log.debug("called with %s", x)
    return SCALE * x + 1
