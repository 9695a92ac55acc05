// What an embedding variable is, as attrs. Every op that can make its table has the same attrs.

#ifndef CC_TENSORFLOW_OPS_OPTION_ATTRS_H_
#define CC_TENSORFLOW_OPS_OPTION_ATTRS_H_

// Use it after a dot in a REGISTER_OP chain. The doc of MultitierEmbeddingVariableHandle describes the attrs.
#define MULTITIER_OPTION_ATTRS                                      \
  Attr("dtype: {float, half, bfloat16} = DT_FLOAT")                 \
      .Attr("key_dtype: {int64, int32, uint64, uint32} = DT_INT64") \
      .Attr("shape: shape")                                         \
      .Attr("options: string = '{\"version\": 1}'")                 \
      .Attr("partition_index: int = 0")                             \
      .Attr("num_partitions: int = 1")

#endif  // CC_TENSORFLOW_OPS_OPTION_ATTRS_H_
