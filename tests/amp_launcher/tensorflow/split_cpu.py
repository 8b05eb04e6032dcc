"""Importing this makes two devices of the CPU; TensorFlow must not have computed anything before."""

from __future__ import annotations

import tensorflow as tf

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
