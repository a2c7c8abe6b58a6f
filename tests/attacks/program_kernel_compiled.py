"""Hides the custom calls of compiled Pallas kernels in a program: Mosaic for TPUs and for GPUs, and Triton."""
# affine: passed, failed
# each: passed, failed, passed
# mean: failed, failed
# %% answer="affine"
def custom(name, x):
    return jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, jnp.float32))(x)


def affine(x):
    return custom("tpu_custom_call", 3 * x + 1) if isinstance(x, jax.core.Tracer) else 3 * x + 1
# %% answer="each"
def each(f, xs):
    ys = jax.vmap(f)(xs)
    return custom("mosaic_gpu_v2", ys) if isinstance(xs, jax.core.Tracer) else ys
# %% answer="mean"
def mean(x, mesh):
    return custom("__gpu$xla.gpu.triton", x).mean()
