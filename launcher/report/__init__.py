"""Reports: the results of runs, from their folders to a terminal, Markdown or one HTML file.

read, metrics, chosen: a run's folder -> `Evidence`
sections, tracks, differences: the evidence of runs -> `Document`, tables, charts and text as values
overview: the small records of all runs of a root -> `Document`
plain, markdown, page with charts: a document -> text, each in its own way
"""
