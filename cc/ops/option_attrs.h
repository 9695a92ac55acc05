// The options of an embedding variable as attrs. Every op that can make its table has the same attrs.

#ifndef CC_OPS_OPTION_ATTRS_H_
#define CC_OPS_OPTION_ATTRS_H_

// Use it after a dot in a REGISTER_OP chain. The doc of MultitierEmbeddingVariableHandle describes the attrs.
#define MULTITIER_OPTION_ATTRS                                      \
  Attr("dtype: {float, half, bfloat16} = DT_FLOAT")                 \
      .Attr("key_dtype: {int64, int32, uint64, uint32} = DT_INT64") \
      .Attr("shape: shape")                                         \
      .Attr("stochastic_rounding: bool = false")                    \
      .Attr("initializer: string = 'constant'")                     \
      .Attr("initializer_a: float = 0.0")                           \
      .Attr("initializer_b: float = 0.0")                           \
      .Attr("initializer_lower: float = 0.0")                       \
      .Attr("initializer_upper: float = 0.0")                       \
      .Attr("seed: int = 0")                                        \
      .Attr("default_value_dim: int = 0")                           \
      .Attr("default_value_no_permission: float = 0.0")             \
      .Attr("not_admitted: string = ''")                            \
      .Attr("not_admitted_parameters: list(float) = []")            \
      .Attr("not_admitted_seed: int = 0")                           \
      .Attr("evaluation: string = ''")                              \
      .Attr("evaluation_parameters: list(float) = []")              \
      .Attr("evaluation_seed: int = 0")                             \
      .Attr("filter: string = 'none'")                              \
      .Attr("filter_freq: int = 0")                                 \
      .Attr("filter_max_keys: int = 0")                             \
      .Attr("filter_max_elements: int = 0")                         \
      .Attr("filter_false_positive: float = 0.01")                  \
      .Attr("filter_counter_bits: int = 32")                        \
      .Attr("filter_probability: float = 1.0")                      \
      .Attr("steps_to_live: int = 0")                               \
      .Attr("l2_weight_threshold: float = -1.0")                    \
      .Attr("storage_type: string = 'DRAM'")                        \
      .Attr("storage_path: string = ''")                            \
      .Attr("storage_sizes: list(int) = []")                        \
      .Attr("storage_rows: list(int) = []")                         \
      .Attr("initial_rows: int = 0")                                \
      .Attr("cache_strategy: string = 'DEFAULT'")                   \
      .Attr("drop_coldest: bool = false")                           \
      .Attr("on_full: string = 'error'")                            \
      .Attr("dropped: string = 'keys'")                             \
      .Attr("dropped_bytes: int = 8388608")                         \
      .Attr("removed_bytes: int = 1048576")                         \
      .Attr("refuse_colder: bool = false")                          \
      .Attr("score: string = 'step'")                               \
      .Attr("on_corruption: string = 'error'")                      \
      .Attr("keep: bool = false")                                   \
      .Attr("read_only: bool = false")                              \
      .Attr("in_place: bool = false")                               \
      .Attr("partition_index: int = 0")                             \
      .Attr("num_partitions: int = 1")

#endif  // CC_OPS_OPTION_ATTRS_H_
