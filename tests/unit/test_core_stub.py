"""The stub of the core, written by hand for its dtypes and docs, and the one nanobind generates."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nanobind.stubgen import StubGen

from gnnstore._core import _kernels

STUB = Path(__file__).parents[2] / "gnnstore" / "_core" / "_kernels.pyi"


class Signatures:
    """What stands in a stub, by name, such as "Reader.describe": parameters, defaults, types."""

    def __init__(self, text: str) -> None:
        self.found: dict[str, str] = {}
        self._aliases: dict[str, ast.expr] = {}
        self._read(ast.parse(text).body, "")

    def _read(self, body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value):
                    self._aliases[name] = value
                case ast.ClassDef(name=name, bases=[ast.Name("TypedDict")]):
                    self._aliases[name] = ast.Name("dict")
                case ast.ClassDef(name=name):
                    self._read(node.body, f"{name}.")
                case ast.FunctionDef(name=name, args=given):
                    for parameter in (*given.args, *given.kwonlyargs):
                        parameter.annotation = self._outermost(parameter.annotation)
                    result = ast.unparse(self._outermost(node.returns) or ast.Name("None"))
                    kinds = [ast.unparse(decorator) for decorator in node.decorator_list]
                    text = f"{kinds} ({ast.unparse(given)}) -> {result}"
                    self.found[f"{prefix}{name}"] = text

    def _outermost(self, annotation: ast.expr | None) -> ast.expr | None:
        """Return the types that an annotation names, without those inside of them."""
        return annotation and ast.Name(" | ".join(sorted(self._types(annotation))))

    def _types(self, annotation: ast.expr) -> set[str]:
        match annotation:
            case ast.BinOp(left=left, right=right):
                return self._types(left) | self._types(right)
            case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple(elts=[inner, *_])):
                return self._types(inner)
            case ast.Subscript(value=outer):
                return self._types(outer)
            case ast.Name(name) if name in self._aliases:
                return self._types(self._aliases[name])
        return {{"Literal": "str"}.get(text := ast.unparse(annotation), text)}


def test_the_stub_is_that_of_the_compiled_core() -> None:
    """Names, parameters, defaults and, but for dtypes and shapes, types."""
    generator = StubGen(_kernels)
    generator.put(_kernels)
    ours, compiled = Signatures(STUB.read_text()).found, Signatures(generator.get()).found
    assert ours.keys() == compiled.keys()
    for name, signature in compiled.items():
        # Bindings that take or return several types say "object".
        pattern = re.escape(signature).replace("object", "[^,]+")
        assert re.fullmatch(pattern, ours[name]), (name, ours[name], signature)
