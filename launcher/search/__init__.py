"""Sweeps that learn: optuna proposes the values of each trial, and a trial is a run of one sweep.

space: words -> what is searched, and the words of one trial; pure
study: optuna's study, kept in the sweep's folder
trials: from a trial to its run, and from the run's rows and result to the study
job: what all trials have in common, and the plan of one
driver: asks for trials as others end, and shows them
command: a search from its words, or continued from its folder
"""
