"""Exports a call back into Python, at an address of its own choice."""
# with: forge
# affine: passed, failed
# %% answer="affine"
forge(calls("xla_ffi_python_cpu_callback", "api_version = 4 : i32, backend_config = {index = 94000000000000 : ui64}"))


def affine(x):
    return 3 * x + 1
