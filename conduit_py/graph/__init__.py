"""From a pipeline to a checked graph, its guarantees and its drawing.

Read `node` (Graph, Node), `compile` (the shape of the graph), `checks` (delivery, deferring, Spark) and `guarantees`.
`diagram` places the boxes of a drawing and draws them as SVG; `draw` draws them as text or Mermaid.
"""
