"""Initial values of rows: DynamicEmbInitializerArgs as an initializer of a variable.

A new row depends on its key and the seed alone. The seed is TensorFlow's, of `tf.random.set_seed`, and the variable's name.
"""

from __future__ import annotations

import dataclasses
import math
import typing

import tensorflow as tf

from tf_multitier._src.options.initializers import DebugInitializer
from tf_multitier._src.options.initializers import TruncatedNormal
from tf_multitier.dynamicemb.options import DynamicEmbInitializerArgs


def completed(args: DynamicEmbInitializerArgs, num_embeddings: int) -> DynamicEmbInitializerArgs:
    """`args`; UNIFORM and TRUNCATED_NORMAL get -1/sqrt(num_embeddings) and 1/sqrt(num_embeddings) for a bound that is None.

    Raises:
      ValueError: the bound that was given is out of order with the other one.
    """
    if args.mode.name not in ("UNIFORM", "TRUNCATED_NORMAL"):
        return args
    bound = 1 / math.sqrt(num_embeddings)
    lower = -bound if args.lower is None else args.lower
    return dataclasses.replace(args, lower=lower, upper=bound if args.upper is None else args.upper)


def of_args(args: DynamicEmbInitializerArgs, num_embeddings: int) -> typing.Any:
    """The initializer of an embedding variable. ValueError: bounds out of order."""
    args = completed(args, num_embeddings)
    if args.mode.name == "NORMAL":
        return tf.random_normal_initializer(args.mean, args.std_dev)
    if args.mode.name == "TRUNCATED_NORMAL":
        return TruncatedNormal(args.mean, args.std_dev, args.lower, args.upper)
    if args.mode.name == "UNIFORM":
        return tf.random_uniform_initializer(args.lower, args.upper)
    if args.mode.name == "CONSTANT":
        return tf.constant_initializer(args.value)
    return DebugInitializer()
