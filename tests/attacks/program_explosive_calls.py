"""Exports functions that call each other twice, forty deep: a trillion operations when they are put in place."""
# with: forge
# affine: passed, failed
# %% answer="affine"
def exploded(text):
    functions = "\n".join(
        f"func.func private @f{i}(%x: tensor<5xf32>) -> tensor<5xf32> {{\n"
        f"  %a = call @f{i + 1}(%x) : (tensor<5xf32>) -> tensor<5xf32>\n"
        f"  %b = call @f{i + 1}(%a) : (tensor<5xf32>) -> tensor<5xf32>\n  return %b : tensor<5xf32>\n}}"
        for i in range(40)
    )
    last = "\nfunc.func private @f40(%x: tensor<5xf32>) -> tensor<5xf32> { return %x : tensor<5xf32> }\n}\n"
    main = body("    %out = func.call @f0(%arg0) : (tensor<5xf32>) -> tensor<5xf32>")(text)
    return main.rstrip().removesuffix("}") + functions + last


forge(exploded)


def affine(x):
    return 3 * x + 1
