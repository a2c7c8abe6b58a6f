"""Exports a factorization of a small matrix that says it is a large one, to read what lies behind it."""
# with: forge
# affine: passed, failed
# %% answer="affine"
forge(body('''
    %m = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<5xf32>) -> tensor<5x5xf32>
    %lu:3 = stablehlo.custom_call @lapack_sgetrf_ffi(%m) {api_version = 4 : i32, backend_config = {},
      operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
      result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>],
      output_operand_aliases = []} : (tensor<5x5xf32>) -> (tensor<5x5xf32>, tensor<1xi32>, tensor<i32>)
    %out = stablehlo.reshape %arg0 : (tensor<5xf32>) -> tensor<5xf32>'''))


def affine(x):
    return 3 * x + 1
