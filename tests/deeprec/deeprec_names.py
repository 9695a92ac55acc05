"""Every name of DeepRec's documentation, and a few lines that use it as a program does: test_deeprec_names.py runs them.

docs/deeprec_names.md has the outcome of each ("works", "no effect" or "refused") and its note for users. `PRELUDE` comes before
each use, in a graph of its own.
"""

PRELUDE = """
import os
import tensorflow as tf
from tensorflow.core.framework.embedding import config_pb2
from tensorflow.python.framework import dtypes
ids = tf.constant([1, 2, 5], tf.int64)
sp_ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [3, 4, 3], [3, 2])
features = {"a": tf.SparseTensor([[0, 0], [1, 1]], tf.constant([3, 4], tf.int64), [2, 3])}

def table(**kwargs):
    return tf.get_embedding_variable("table", 4, initializer=tf.ones_initializer(tf.float32), **kwargs)

def column(**kwargs):
    return tf.feature_column.categorical_column_with_embedding("a", tf.int64, **kwargs)

def run(*tensors):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
        return session.run(tensors)

def train(values, optimizer=None, **kwargs):
    optimizer = optimizer or tf.train.AdagradOptimizer(0.1)
    loss = tf.reduce_sum(values)
    step = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step(), **kwargs)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(loss)
        session.run(step)
        assert session.run(loss) < before

def with_option(**kwargs):
    train(tf.nn.embedding_lookup(table(ev_option=tf.EmbeddingVariableOption(**kwargs)), ids))

def with_filter(**kwargs):
    rows = tf.nn.embedding_lookup(table(ev_option=tf.EmbeddingVariableOption(**kwargs)), ids)
    step = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows), tf.train.get_or_create_global_step())
    run(step)

def saved_keys(steps, **kwargs):
    # Trains key 0, then key 1, and so on, each in one step. Returns the keys that are saved.
    key = tf.placeholder(tf.int64, [1])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table(ev_option=tf.EmbeddingVariableOption(**kwargs)), key))
    step = tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_or_create_global_step())
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for i in range(steps):
            session.run(step, {key: [i]})
        return sorted(tf.train.load_variable(saver.save(session, "./evicted"), "table-keys"))

def configured(*fields):
    config = tf.ConfigProto()
    for field in fields:
        exec("config." + field)
    with tf.Session(config=config) as session:
        session.run(ids)
"""

_ESTIMATOR = """
def model_fn(features, labels, mode):
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table(), features))
    step = tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=step, predictions={"loss": loss})

estimator = tf.estimator.Estimator(model_fn, config=tf.estimator.RunConfig(session_config=tf.ConfigProto()))
estimator.train(lambda: tf.data.Dataset.from_tensors([1, 2, 3]).repeat(2))
assert estimator.evaluate(lambda: tf.data.Dataset.from_tensors([1, 2, 3]))["global_step"] == 2
inputs = lambda: tf.estimator.export.ServingInputReceiver(tf.constant([1, 2]), tf.constant([1, 2]))
assert os.path.isdir(estimator.export_saved_model("export", inputs))
"""

_SWITCH = "graph_options.optimizer_options."

NAMES = {
    # Variables
    "tf.get_embedding_variable": "train(tf.nn.embedding_lookup(table(), ids))",
    "tf.get_embedding_variable(partitioner=)": "t = table(partitioner=tf.fixed_size_partitioner(4))\ntrain(tf.nn.embedding_lookup(t, ids))\nassert len([v.total_count() for v in t]) == 4",
    "tf.get_embedding_variable(key_dtype=tf.int32)": "train(tf.nn.embedding_lookup(table(key_dtype=tf.int32), tf.constant([1, 2])))",
    "tf.get_embedding_variable(steps_to_live=)": "tf.train.get_or_create_global_step()\ntrain(tf.nn.embedding_lookup(table(steps_to_live=9), ids))",
    "tf.get_embedding_variable(init_data_source=)": "table(init_data_source='x')",
    "tf.get_multihash_variable": "t = tf.get_multihash_variable('m', [[2, 2], [2, 2]], complementary_strategy='Q-R', operation='concat',\n"
    "                              initializer=tf.ones_initializer)\ntrain(tf.nn.embedding_lookup(t, [0, 1, 2, 3]))",
    "tf.get_dynamic_dimension_embedding_variable": "t = tf.get_dynamic_dimension_embedding_variable('d', embedding_block_dimension=6.0, embedding_block_num=4,\n"
    "                                                initializer=tf.ones_initializer())\n"
    "rows = tf.nn.embedding_lookup(t, ids, blocknums=[4, 1, 3])\nassert run(rows)[0].sum() == 48\ntrain(rows)",
    "tf.get_dynamic_dimension_embedding_variable(storage_type=)": "tf.get_dynamic_dimension_embedding_variable('d', 2, 2, storage_type=config_pb2.StorageType.DRAM)",
    "EmbeddingVariable.total_count": "t = table(partitioner=tf.fixed_size_partitioner(2))\n"
    "assert [list(shape) for shape in run(*[part.total_count() for part in t])] == [[0, 4], [0, 4]]",
    "EmbeddingVariable.get_dynamic_shape": "assert list(run(table().get_dynamic_shape())[0]) == [0, 4]",
    "EmbeddingVariable.get_frequency": "run(table().get_frequency(ids))",
    "EmbeddingVariable.get_version": "run(table().get_version(ids))",
    "EmbeddingVariable.export": "run(*table().export())",
    "kv_variable_ops.EmbeddingVariable": "from tensorflow.python.ops import kv_variable_ops\nassert isinstance(table(), kv_variable_ops.EmbeddingVariable)",
    "kv_variable_ops.lookup_tier": "from tensorflow.python.ops import kv_variable_ops\nrun(kv_variable_ops.lookup_tier(table(), ids))",
    "kv_variable_ops.lookup_resource": "from tensorflow.python.ops import kv_variable_ops\nkv_variable_ops.lookup_resource(table())",
    "tf.GraphKeys.EMBEDDING_VARIABLES": "t = table()\nassert tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES) == [t]",
    "tf.GraphKeys.EV_INIT_VAR_OPS": "run(tf.get_collection(tf.GraphKeys.EV_INIT_VAR_OPS))",
    "tf.GraphKeys.EV_INIT_SLOT_OPS": "run(tf.get_collection(tf.GraphKeys.EV_INIT_SLOT_OPS))",
    "tf.get_hash_table": "tf.get_hash_table('t', 4)",
    "tf.hash_table": "tf.hash_table.DistributedHashTable('t', 4)",
    # Options
    "tf.EmbeddingVariableOption": "with_option(evict_option=None, filter_option=None)",
    "tf.EmbeddingVariableOption(ht_type=, ht_partition_num=)": "with_option(ht_type='x', ht_partition_num=10)",
    "tf.EmbeddingVariableOption(ckpt=)": "tf.EmbeddingVariableOption(ckpt=tf.CheckpointOption('x'))",
    "tf.InitializerOption": "with_option(init_option=tf.InitializerOption(tf.glorot_uniform_initializer, default_value_dim=100))",
    "tf.InitializerOption(default_value_no_permission=)": "with_filter(init_option=tf.InitializerOption(default_value_no_permission=0.5), filter_option=tf.CounterFilter(3))",
    "tf.CounterFilter": "with_filter(filter_option=tf.CounterFilter(filter_freq=3))",
    "tf.CBFFilter(counter_type=tf.int64)": "with_filter(filter_option=tf.CBFFilter(filter_freq=3, max_element_size=2**10, false_positive_probability=0.01,\n"
    "                                       counter_type=dtypes.int64))",
    "tf.GlobalStepEvict": "tf.train.get_or_create_global_step()\nassert saved_keys(3, evict_option=tf.GlobalStepEvict(steps_to_live=1)) == [1, 2]",
    "tf.L2WeightEvict": "assert saved_keys(1, evict_option=tf.L2WeightEvict(l2_weight_threshold=1.95)) == []",
    "tf.StorageOption": "with_option(storage_option=tf.StorageOption(config_pb2.StorageType.DRAM_SSDHASH, os.getcwd(), [512],\n"
    "                                            cache_strategy=config_pb2.CacheStrategy.LRU))",
    "tf.StorageOption(layout=)": "with_option(storage_option=tf.StorageOption(layout='normal'))",
    "config_pb2.StorageType.HBM_DRAM": "with_option(storage_option=tf.StorageOption(config_pb2.StorageType.HBM_DRAM))",
    "config_pb2.CacheStrategy": "assert config_pb2.CacheStrategy.LFU == 1",
    # Feature columns
    "tf.feature_column.categorical_column_with_embedding": "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(column(), 3, initializer=tf.ones_initializer())]))",
    "tf.feature_column.categorical_column_with_embedding(partition_num=)": "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(column(partition_num=2), 3)]))",
    "tf.feature_column.sequence_categorical_column_with_embedding": "from tensorflow.python.feature_column import sequence_feature_column\n"
    "c = sequence_feature_column.sequence_categorical_column_with_embedding(key='a', dtype=tf.dtypes.int32)\n"
    "features['a'] = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([3, 4], tf.int64), [2, 3])\n"
    "train(tf.contrib.feature_column.sequence_input_layer(features, [tf.feature_column.embedding_column(c, 3)])[0])",
    "tf.feature_column.weighted_categorical_column": "features['w'] = [[2.0], [5.0]]\nc = tf.feature_column.weighted_categorical_column(column(), 'w')\n"
    "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(c, 3)]))",
    "tf.feature_column.categorical_column_with_adaptive_embedding": "c = tf.feature_column.categorical_column_with_adaptive_embedding('a', hash_bucket_size=10, dtype=tf.int64)\n"
    "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(c, 3)], adaptive_mask_tensors={'a': [1, 0]}))",
    "tf.feature_column.categorical_column_with_multihash": "from tensorflow.python.feature_column import feature_column_v2 as fc2\nc = fc2.categorical_column_with_multihash('a', dims=(2, 2))\n"
    "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(c, (2, 3))]))",
    "tf.feature_column.embedding_column(do_fusion=)": "train(tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(column(), 3, do_fusion=True)]))",
    "tf.feature_column.embedding_column(coalesced_scope=)": "tf.feature_column.embedding_column(column(), 3, coalesced_scope='x')",
    "tf.feature_column.shared_embedding_columns(do_fusion=)": "tf.feature_column.shared_embedding_columns([column()], 3, do_fusion=True)",
    "tf.feature_column.input_layer(adaptive_mask_tensors=)": "tf.feature_column.input_layer(features, [tf.feature_column.embedding_column(column(), 3)], adaptive_mask_tensors={})",
    "tf.feature_column.linear_model(do_fusion=)": "train(tf.feature_column.linear_model(features, [column()], units=1, sparse_combiner='sum', do_fusion=True))",
    "tf.feature_column.group_embedding_column_scope": "with tf.feature_column.group_embedding_column_scope(name='g'):\n    c = tf.feature_column.embedding_column(column(), 3)\n"
    "train(tf.feature_column.input_layer(features, [c]))",
    "tf.feature_column.coalesced_embedding_scope": "tf.feature_column.coalesced_embedding_scope('x')",
    "tf.feature_column.multi_hash_embedding_column": "tf.feature_column.multi_hash_embedding_column(None, 3)",
    "tf.feature_column.shared_embedding_column": "tf.feature_column.shared_embedding_column([column()], 3)",
    # tf.contrib
    "contrib.layers.sparse_column_with_embedding": "from tensorflow.contrib.layers.python.layers import feature_column, feature_column_ops\n"
    "c = feature_column.sparse_column_with_embedding(column_name='a', dtype=tf.dtypes.int64)\n"
    "w = feature_column.embedding_column(sparse_id_column=c, dimension=3, do_fusion=True)\n"
    "train(feature_column_ops.input_from_feature_columns(columns_to_tensors=features, feature_columns=[w]))",
    "contrib.layers.sparse_column_wth_embedding": "tf.contrib.layers.sparse_column_wth_embedding('a')",
    "contrib.layers.embedding_column(do_fusion=)": "tf.contrib.layers.embedding_column(column(), 3, do_fusion=True)",
    "contrib.layers.shared_embedding_columns": "tf.contrib.layers.shared_embedding_columns([column()], 3)",
    "contrib.layers.weighted_sum_from_feature_columns": "train(tf.contrib.layers.weighted_sum_from_feature_columns(features, [column()], num_outputs=1)[0])",
    "contrib.layers.safe_embedding_lookup_sparse": "from tensorflow.contrib.layers.python.layers import embedding_ops\ntrain(embedding_ops.safe_embedding_lookup_sparse(table(), sp_ids))",
    "contrib.layers.fused_safe_embedding_lookup_sparse": "from tensorflow.contrib.layers.python.layers import embedding_ops\n"
    "train(embedding_ops.fused_safe_embedding_lookup_sparse(table(), sp_ids, prune=True))",
    "contrib.layers.sequence_input_from_feature_columns": "tf.contrib.layers.sequence_input_from_feature_columns({}, [])",
    "contrib.layers.sparse_column_with_dynamic_dimension_embedding": "tf.contrib.layers.sparse_column_with_dynamic_dimension_embedding('a')",
    "contrib.feature_column.sequence_input_layer": "assert callable(tf.contrib.feature_column.sequence_input_layer)",
    "tf.train.load_variable(ckpt, 'table-keys')": "assert saved_keys(2) == [0, 1]\n"
    "assert tf.train.load_variable('./evicted', 'table-values').shape == (2, 4)",
    "contrib.framework.checkpoint_utils": "from tensorflow.contrib.framework.python.framework import checkpoint_utils\nv = tf.get_variable('v', [2])\n"
    "with tf.Session() as s:\n    s.run(v.initializer)\n    path = tf.train.Saver().save(s, os.path.join(os.getcwd(), 'ck'))\n"
    "assert checkpoint_utils.list_variables(path) == [('v', [2])] and len(checkpoint_utils.load_variable(path, 'v')) == 2",
    "contrib.rnn.LSTMCell": "run(tf.contrib.rnn.LSTMCell(3)(tf.ones([2, 3]), tf.contrib.rnn.LSTMStateTuple(tf.zeros([2, 3]), tf.zeros([2, 3])))[0])",
    "contrib.rnn.python.ops.core_rnn_cell._Linear": "from tensorflow.contrib.rnn.python.ops.core_rnn_cell import _Linear\nrun(_Linear([tf.ones([2, 3])], 4, True)([tf.ones([2, 3])]))",
    # Lookups
    "tf.nn.embedding_lookup": "train(tf.nn.embedding_lookup(table(), ids))",
    "tf.nn.embedding_lookup(counts=)": "tf.nn.embedding_lookup(table(), ids, counts=[1, 1, 1])",
    "tf.nn.embedding_lookup(ev_init_value=)": "tf.nn.embedding_lookup(table(), ids, ev_init_value=1.0)",
    "tf.nn.embedding_lookup(blocknums=)": "t = tf.get_dynamic_dimension_embedding_variable('d', 2, 2)\nrun(tf.nn.embedding_lookup(t, ids, blocknums=[1, 2, 1]))",
    "tf.nn.embedding_lookup_sparse": "train(tf.nn.embedding_lookup_sparse(table(), sp_ids, None, combiner='sum'))",
    "tf.nn.safe_embedding_lookup_sparse": "train(tf.nn.safe_embedding_lookup_sparse(table(), sp_ids))",
    "tf.nn.fused_embedding_lookup_sparse": "train(tf.nn.fused_embedding_lookup_sparse(table(), sp_ids, combiner='mean', prune_invalid_ids=True))",
    "embedding_ops.fused_safe_embedding_lookup_sparse": "from tensorflow.python.ops.embedding_ops import fused_safe_embedding_lookup_sparse\n"
    "train(fused_safe_embedding_lookup_sparse(embedding_weights=table(), sparse_ids=sp_ids, sparse_weights=None))",
    "tf.nn.group_embedding_lookup_sparse": "train(tf.nn.group_embedding_lookup_sparse([table()], [sp_ids], ['sum'])[0])",
    "tf.nn.group_embedding_lookup": "train(tf.nn.group_embedding_lookup([table()], [ids])[0])",
    "tf.nn.safe_embedding_lookup_multi_dim": "tf.nn.safe_embedding_lookup_multi_dim(table(), sp_ids)",
    "tf.nn.embedding_lookup_sparse_multi_dim": "tf.nn.embedding_lookup_sparse_multi_dim(table(), sp_ids, None)",
    "tf.nn.safe_adaptive_embedding_lookup_sparse": "tf.nn.safe_adaptive_embedding_lookup_sparse(table(), None, sp_ids)",
    # Optimizers
    "tf.train.AdagradDecayOptimizer": "train(tf.nn.embedding_lookup(table(), ids), tf.train.AdagradDecayOptimizer(0.1, global_step=tf.train.get_or_create_global_step()))",
    "tf.train.AdagradDecayOptimizerV2": "train(tf.nn.embedding_lookup(table(), ids), tf.train.AdagradDecayOptimizerV2(0.1, global_step=tf.train.get_or_create_global_step(),\n"
    "      accumulator_decay_step=10))",
    "tf.train.AdamAsyncOptimizer": "train(tf.nn.embedding_lookup(table(), ids), tf.train.AdamAsyncOptimizer(0.1, 0.9, 0.999, 1e-8))",
    "tf.train.AdamAsyncOptimizer(apply_sparse_rmsprop=)": "train(tf.nn.embedding_lookup(table(), ids), tf.train.AdamAsyncOptimizer(0.1, apply_sparse_rmsprop=True))",
    "tf.train.AdamWOptimizer": "train(tf.nn.embedding_lookup(table(), ids), tf.train.AdamWOptimizer(weight_decay=0.01, learning_rate=0.1))",
    "tf.train.AdamWOptimizer.minimize(decay_var_list=)": "t = table()\ntrain(tf.nn.embedding_lookup(t, ids), tf.train.AdamWOptimizer(0.01, learning_rate=0.1), decay_var_list=[t])",
    # The session
    "ConfigProto: optimizer_options.do_op_fusion": f"configured('{_SWITCH}do_op_fusion = True')",
    "ConfigProto: optimizer_options.do_smart_stage": f"configured('{_SWITCH}do_smart_stage = True')",
    "ConfigProto: optimizer_options.do_smart_stage_gpu": f"configured('{_SWITCH}do_smart_stage_gpu = True')",
    "ConfigProto: optimizer_options.stage_subgraph_on_cpu": f"configured('{_SWITCH}stage_subgraph_on_cpu = True')",
    "ConfigProto: optimizer_options.stage_multi_stream": f"configured('{_SWITCH}stage_multi_stream = True')",
    "ConfigProto: optimizer_options.do_async_embedding": f"configured('{_SWITCH}do_async_embedding = True')",
    "ConfigProto: optimizer_options.async_embedding_options": f"configured('{_SWITCH}async_embedding_options.threads_num = 4', '{_SWITCH}async_embedding_options.capacity = 4')",
    "ConfigProto: optimizer_options.device_placement_optimization": f"configured('{_SWITCH}device_placement_optimization = True')",
    "ConfigProto: optimizer_options.micro_batch_num": f"configured('{_SWITCH}micro_batch_num = 4')",
    "ConfigProto: executor_policy": "configured('executor_policy = tf.ExecutorPolicy.USE_COST_MODEL_EXECUTOR')",
    "ConfigProto: session_stage_subgraph_thread_pool": "configured('session_stage_subgraph_thread_pool.add()', 'session_stage_subgraph_thread_pool[0].inter_op_threads_num = 8')",
    "ConfigProto: use_per_session_stream": "configured('use_per_session_stream = True')",
    "ConfigProto: gpu_options.cuda_graph_enable_jit": "configured('gpu_options.cuda_graph_enable_jit = True')",
    "ConfigProto: rewrite_options.use_multi_stream": "configured('graph_options.rewrite_options.use_multi_stream = 1',\n"
    "           'graph_options.rewrite_options.multi_stream_opts.multi_stream_num = 2')",
    "tf.stream": "with tf.stream(1):\n    run(tf.identity(ids))",
    "tf.variable_scope.keep_weights": "with tf.variable_scope('s').keep_weights(dtype=tf.float32):\n    w = tf.get_variable('w', [2], tf.bfloat16)\n"
    "assert w.dtype == tf.bfloat16 and tf.global_variables()[0].dtype.base_dtype == tf.float32",
    # Training together
    "tf.config.experimental.enable_distributed_strategy": "tf.config.experimental.enable_distributed_strategy(strategy='collective')",
    'tf.config.experimental.enable_distributed_strategy("parameter_server")': "tf.config.experimental.enable_distributed_strategy(strategy='parameter_server')",
    "tf.config.experimental.enable_group_embedding": "tf.config.experimental.enable_group_embedding(fusion_type='localized')",
    "CollectiveStrategy": "from tensorflow.python.distribute.group_embedding_collective_strategy import CollectiveStrategy\nstrategy = CollectiveStrategy()\n"
    "with strategy.scope(), strategy.embedding_scope():\n    assert (strategy.world_size(), strategy.rank()) == (1, 0)",
    # Data
    "parquet_dataset_ops.ParquetDataset": "from tensorflow.python.data.experimental.ops import parquet_dataset_ops\nparquet_dataset_ops.ParquetDataset",
    "parquet_dataset_ops.read_parquet": "from tensorflow.python.data.experimental.ops import parquet_dataset_ops\nassert callable(parquet_dataset_ops.read_parquet(8))",
    "tf.staged": "x = tf.staged(tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next(), num_threads=1, capacity=2)\n"
    "with tf.train.MonitoredTrainingSession(hooks=[tf.make_prefetch_hook()]) as session:\n    assert session.run(x) == 0",
    "tf.make_prefetch_hook": "assert isinstance(tf.make_prefetch_hook(), tf.train.SessionRunHook)",
    "tf.train.mark_target_node": "tf.train.mark_target_node([ids])",
    "work_queue.WorkQueue": "from tensorflow.python.ops.work_queue import WorkQueue\nq = WorkQueue(['a', 'b'], num_epochs=2, shuffle=False)\n"
    "q.add_summary()\nwork = q.take()\nassert q.input_dataset() is not None\n"
    "with tf.train.MonitoredTrainingSession() as session:\n    assert session.run(work) == b'a'",
    "tf.prefetch_join": "x = tf.prefetch_join([[ids], [ids]])\n"
    "with tf.train.MonitoredTrainingSession(hooks=[tf.make_prefetch_hook()]) as session:\n    session.run(x)",
    "tf.layers": "assert run(tf.layers.dense(tf.ones([2, 3]), 4, kernel_initializer=tf.ones_initializer()))[0].tolist() == [[3] * 4] * 2",
    "work_queue.LocalWorkMgr": "from tensorflow.python.ops.work_queue import LocalWorkMgr\nLocalWorkMgr('worker', 0, '.')",
    # Estimators, checkpoints, servers
    "tf.estimator.Estimator": _ESTIMATOR,
    "tf.estimator.DNNLinearCombinedClassifier": "tf.estimator.DNNLinearCombinedClassifier(linear_feature_columns=[column()], linear_sparse_combiner='sum')",
    "tf.estimator.BoostedTreesClassifier": "tf.estimator.BoostedTreesClassifier()",
    "tf.estimator.Estimator.export_saved_model(save_incr_model=)": "tf.estimator.Estimator(lambda features: None).export_saved_model('.', None, save_incr_model=True)",
    "tf.train.MonitoredTrainingSession(save_incremental_checkpoint_secs=)": "table()\nimport tempfile\ntf.train.get_or_create_global_step()\n"
    "with tf.train.MonitoredTrainingSession(checkpoint_dir=tempfile.mkdtemp(), save_incremental_checkpoint_secs=20):\n    pass",
    "tf.train.Saver(incremental_save_restore=)": "table()\ntf.train.Saver(sharded=True, incremental_save_restore=True)",
    "tf.train.Scaffold(incremental_save_restore=)": "tf.train.Scaffold(incremental_save_restore=False)\ntf.train.Scaffold(incremental_save_restore=True)",
    "tf.train.CheckpointSaverHook(incremental_save_secs=)": "tf.train.CheckpointSaverHook('.', save_secs=60, incremental_save_secs=20)",
    "incremental_saver": "from tensorflow.python.training import incremental_saver as tf_incr_saver\n"
    "table()\nsaver = tf.train.Saver(incremental_save_restore=True)\n"
    "assert hasattr(tf_incr_saver._get_incremental_saver(True, saver), 'incremental_save')",
    'tf.distribute.Server(protocol="grpc++")': "server = tf.distribute.Server(tf.train.ClusterSpec({'worker': ['localhost:0']}), 'worker', 0, protocol='grpc++')\n"
    "with tf.Session(server.target) as session:\n    session.run(ids)",
    "tf.data.KafkaDataset": "tf.data.KafkaDataset(topics=['t:0:0:-1'], group='g', timeout=100, eof=False)",
    "tf.data.KafkaGroupIODataset": "tf.data.KafkaGroupIODataset(topics=['t'], group_id='g', servers='localhost:9092')",
    "tf.graph_optimizer": "tf.graph_optimizer.enable_sample_awared_graph_compression([ids], [ids], 3)",
    "tf.SessionGroup": "tf.SessionGroup(4)",
    "tf.TableRecordReader": "tf.TableRecordReader()",
    'pkg_resources.get_distribution("Tensorflow")': "import pkg_resources\nassert 'deeprec' in pkg_resources.get_distribution('Tensorflow').version",
}
