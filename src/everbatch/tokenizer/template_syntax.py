"""Payments in the syntax tree of a chat template.

Belongs here: rewriting a parsed template so that it pays for its own work, and the tag that jinja2
does not know. Not here: prices (template_meter.py). Used by template_sandbox.py, which provides the
filters meter_tick, meter_deep and meter_shallow that the rewritten template calls.
"""

from math import isfinite
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from everbatch.tokenizer.template_meter import MAX_INTEGER_BITS


class _Instrumenter(NodeTransformer):
    """Puts the payments into a template's syntax tree."""

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        # jinja2 writes 1e999 as the name inf, and cannot write an integer of 4,300 digits at all.
        value = node.value
        if isinstance(value, float) and not isfinite(value):
            raise TemplateSyntaxError("a number is beyond what a float holds", node.lineno)
        if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise TemplateSyntaxError(
                f"an integer has more than {MAX_INTEGER_BITS:,} bits", node.lineno
            )
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, _tick(node.body))
        if node.test is not None:
            # Rounds that the test filters out never reach the body.
            node.test = nodes.And(_deep(nodes.Const(True)), node.test)
        return node

    def visit_body(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick(node.body))
        return node

    visit_Macro = visit_CallBlock = visit_body

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _deep(node.expr)
        for operand in node.ops:
            operand.expr = _deep(operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        node.nodes = [_deep(operand) for operand in node.nodes]
        return _deep(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return nodes.Filter(node, "meter_shallow", [], [], None, None)
        if not isinstance(node.arg, nodes.Const):
            # A dict hashes it, a tuple down to its leaves.
            node.arg = _deep(node.arg)
        return node

    def visit_literal(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _deep(node)

    visit_List = visit_Dict = visit_literal

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        self.generic_visit(node)
        return _deep(node) if node.ctx == "load" else node


def _deep(node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, "meter_deep", [], [], None, None)


def _tick(body: list[nodes.Node]) -> nodes.Node:
    """A statement that pays for one run of `body`, its constant text included."""
    num_chars = sum(
        len(data.data)
        for node in body
        for data in [node, *node.find_all(nodes.TemplateData)]
        if isinstance(data, nodes.TemplateData)
    )
    cost = nodes.Const(num_chars)
    return nodes.Output([nodes.Filter(cost, "meter_tick", [], [], None, None)])


class MeteredCodeGenerator(CodeGenerator):
    """Compiles a template with the payments in it."""

    def visit_Template(self, node: nodes.Template, frame: Any = None) -> None:
        super().visit_Template(_Instrumenter().visit(node), frame)


class GenerationBlocks(Extension):
    """Reads {% generation %}, with which training marks the assistant's text; it changes nothing
    here. Source: transformers, chat_template_utils.py."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
