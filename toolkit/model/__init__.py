"""Whole models: ONNX import, graph, fusion, layouts, memory plan, task extraction."""
