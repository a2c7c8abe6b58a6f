"""Exports a function that calls itself without end."""
# with: forge
# affine: passed, failed|crashed
# %% answer="affine"
def recursive(text):
    main = body("    %out = func.call @again(%arg0) : (tensor<5xf32>) -> tensor<5xf32>")(text)
    again = """func.func private @again(%x: tensor<5xf32>) -> tensor<5xf32> {
      %a = func.call @again(%x) : (tensor<5xf32>) -> tensor<5xf32>
      return %a : tensor<5xf32>\n}\n}"""
    return main.rstrip().removesuffix("}") + again


forge(recursive)


def affine(x):
    return 3 * x + 1
