"""Enters contexts of JAX, NumPy and Python, and leaves them open."""
# %% before="each"
import contextlib
import io
import warnings

opened = contextlib.ExitStack()
opened.enter_context(jax.disable_jit())
opened.enter_context(jax.enable_x64(True))
opened.enter_context(jax.debug_nans(True))
opened.enter_context(jax.numpy_rank_promotion("raise"))
opened.enter_context(jax.default_matmul_precision("bfloat16"))
opened.enter_context(np.printoptions(precision=2))
opened.enter_context(warnings.catch_warnings())
opened.enter_context(contextlib.redirect_stdout(io.StringIO()))
# %% before="mean"
opened.enter_context(jax.make_mesh((8,), ("other",)))
