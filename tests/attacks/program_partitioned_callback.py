"""Exports the partitioner's callback into Python, which runs while a program compiles."""
# with: forge
# affine: passed, failed
# %% answer="affine"
forge(calls("CustomSPMDPartitioning", 'api_version = 1 : i32, backend_config = "94000000000000"'))


def affine(x):
    return 3 * x + 1
