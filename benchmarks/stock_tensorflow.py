"""Runs a script of TensorFlow 1 on stock TensorFlow 2, without tf_multitier: python stock_tensorflow.py SCRIPT ARGUMENTS

`import tensorflow as tf` in it is `tensorflow.compat.v1` in TensorFlow 1's behavior; tf_keras has tf.layers.
"""

import os
import runpy
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

import tensorflow.compat.v1 as tf


def main():
    tf.disable_v2_behavior()
    sys.modules["tensorflow"] = tf
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
