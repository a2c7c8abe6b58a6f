# %% [markdown]
# # 27 · From PyTorch
#
# *The core takes 35 minutes.*
# %%
import jax
