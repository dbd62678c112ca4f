"""From a pipeline to a checked graph, its guarantees and its drawing.

Read `node` (Graph, Node), `compile` (the shape of the graph), `checks` (delivery, deferring, Spark) and `guarantees`.
`draw` has the drawings: `layout` places the boxes, `draw_text` and `draw_svg` draw them.
"""
