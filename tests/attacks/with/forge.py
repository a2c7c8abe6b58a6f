import dataclasses, re

import jax.export
from jax._src.export import _export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

serialize = jax.export.Exported.serialize


def forge(edit):
    """From now on, export what `edit` makes of a program's text."""

    def forged(exported, **options):
        with mlir.make_ir_context() as context:
            context.allow_unregistered_dialects = True
            module = ir.Module.parse(edit(re.sub(r" loc\(.*?\)(?=[ ,)]|$)|^#loc.*$", "", exported.mlir_module(), flags=re.M)))
            blob = _export._module_to_bytecode(module)
        return serialize(dataclasses.replace(exported, mlir_module_serialized=blob), **options)

    jax.export.Exported.serialize = forged


def body(lines):
    """An edit that has the program of five floats do just this, and return %out."""
    return lambda text: re.sub(r"(?s)(?<=\n)    %.*?return %\d+", lines + "\n    return %out", text, count=1)


def calls(target, attributes, operands="%arg0", types="(tensor<5xf32>) -> tensor<5xf32>"):
    """An edit that has the program call out."""
    return body(f"    %out = stablehlo.custom_call @{target}({operands}) {{{attributes}}} : {types}")
