"""Writes scalars into event files as TensorFlow 2 and TensorFlow 1 do: `write_events FOLDER`."""

from __future__ import annotations

import sys

import tensorflow as tf

folder = sys.argv[1]
writer = tf.summary.create_file_writer(f"{folder}/tensors")
with writer.as_default():
    for step in (0, 300):
        tf.summary.write("loss", tf.constant(0.25), step=step)
        tf.summary.write("words", tf.constant("text"), step=step)
        tf.summary.write("weights", tf.zeros([2]), step=step)
writer.close()
with tf.Graph().as_default():
    writer = tf.compat.v1.summary.FileWriter(f"{folder}/simple")
    for step in (0, 300):
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=0.25)
        writer.add_summary(tf.compat.v1.Summary(value=[value]), step)
    writer.close()
