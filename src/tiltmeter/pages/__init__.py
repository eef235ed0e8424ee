"""What users read: the report, terminal output and Markdown, all made of `model`.

sections/, summary, measured   rows of results -> sections, findings, tables and plots
html/, terminal/, markdown     the three renderers; they lay out and compute nothing
text, selection, plots/        how numbers are written, what is shown first, how plots are drawn
"""
