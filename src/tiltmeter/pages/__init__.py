"""What users read: the report, terminal output and Markdown, all made of `model`.

report, sections/, summary, measured   from results to sections, findings, tables and plots
html/, terminal/, markdown             the three renderers; they lay out and compute nothing
text, columns, selection, plots/       how numbers are written, what comes first, how plots look
"""
