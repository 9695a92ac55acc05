"""Hides what TensorFlow prints when it starts. Import it before TensorFlow.

TF_ENABLE_ONEDNN_OPTS=0 switches oneDNN off, and with it a notice that the log level does not hide.
A value that the environment already has is kept.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
