"""Formulas as MathML, written while the pages are built: no script, no network."""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

logger = logging.getLogger(__name__)


def setup(app):
    """Register the renderer that ``html_math_renderer = "mathml"`` names."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(_write_inline, None), block_renderers=(_write, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write_inline(translator, node):
    translator.body.append(_convert(translator, node, as_block=False))
    raise nodes.SkipNode


def _write(translator, node):
    formula = _convert(translator, node, as_block=True)
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def _convert(translator, node, as_block):
    try:
        formula = tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:  # with -W it ends the build
        logger.warning("formula not understood: %s", error, location=node)
        return translator.encode(node.astext())
    return formula.replace("<mo>'</mo>", "<mo>\u2032</mo>")  # a prime, as in TeX
