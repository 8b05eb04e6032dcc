"""Reports: what runs amount to, from their folders to a terminal, Markdown or one HTML file.

read.py, metrics.py     a run's folder -> `Evidence`
sections.py, ...        evidence -> `Document`: tables, charts and text as values
plain.py, markdown.py, page.py    a document -> text, each in its own way
"""
