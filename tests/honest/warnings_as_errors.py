"""Turns warnings into errors, as careful people do."""
# %%
import warnings

warnings.simplefilter("error")
