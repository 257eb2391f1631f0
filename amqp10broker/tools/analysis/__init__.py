"""The analysis of recorded flow events (`docs/analysis.md`). Needs the extra ``spark``; nothing is imported
here.
"""
