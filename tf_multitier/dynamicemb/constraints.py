"""DynamicEmbParameterConstraints: what a planner may choose for one table. It has the fields of TorchRec's constraints, and two more."""

from __future__ import annotations

import dataclasses
import typing

from tf_multitier._src.options.option_values import boolean
from tf_multitier._src.options.option_values import instance
from tf_multitier._src.options.option_values import integer
from tf_multitier._src.options.option_values import one_of
from tf_multitier._src.options.option_values import real
from tf_multitier.dynamicemb.configs import Fields
from tf_multitier.dynamicemb.configs import listed
from tf_multitier.dynamicemb.enums import BoundsCheckMode
from tf_multitier.dynamicemb.enums import ShardingType
from tf_multitier.dynamicemb.options import DynamicEmbTableOptions

# Fields of TorchRec that would change what a table does: {field: what a program does instead of setting it}.
_INSTEAD = {
    "cache_params": "global_hbm_for_values of the options says what is cached",
    "stochastic_rounding": "values of 16 bits are rounded to the nearest",
    "output_dtype": "give the sharder fused_params={'output_dtype': ...}",
    "key_value_params": "storage_type and storage_path of the options say where rows are",
    "use_virtual_table": "use_dynamicemb=True makes a table that grows with its keys",
}


@dataclasses.dataclass
class DynamicEmbParameterConstraints(Fields):
    """What the planner may choose for one table.

    Attributes:
      sharding_types: values of ShardingType; with use_dynamicemb that of ROW_WISE. None: all. No effect.
      compute_kernels, min_partition, enforce_hbm, device_group: of kernels, shards and devices. No effect.
      pooling_factors, num_poolings, batch_sizes, is_weighted: what the batches of a table are like. No effect.
      cache_params, stochastic_rounding, output_dtype, key_value_params, use_virtual_table: refused, except None and False.
      bounds_check_mode: None, NONE or FATAL. A dynamic table has no bounds; a static one refuses an id that it does not have.
      feature_names: those of the table's config, or None.
      use_dynamicemb: False: the table is a static tf.Variable [num_embeddings, embedding_dim], and its options have no effect.
      dynamicemb_options: of the table.

    Raises:
      TypeError, ValueError: a bad value.
      NotImplementedError: a field that is refused, or another bounds_check_mode.
    """

    sharding_types: list[str] | None = None
    compute_kernels: list[str] | None = None
    min_partition: int | None = None
    pooling_factors: list[float] = dataclasses.field(default_factory=lambda: [1.0])
    num_poolings: list[float] | None = None
    batch_sizes: list[int] | None = None
    is_weighted: bool = False
    cache_params: typing.Any = None
    enforce_hbm: bool | None = None
    stochastic_rounding: bool | None = None
    bounds_check_mode: BoundsCheckMode | None = None
    feature_names: list[str] | None = None
    output_dtype: typing.Any = None
    device_group: str | None = None
    key_value_params: typing.Any = None
    use_virtual_table: bool = False
    use_dynamicemb: bool = False
    dynamicemb_options: DynamicEmbTableOptions = dataclasses.field(
        default_factory=DynamicEmbTableOptions
    )

    def __post_init__(self):
        for name in ("is_weighted", "use_dynamicemb"):
            boolean(self._where(name), getattr(self, name))
        kinds = [ShardingType.ROW_WISE] if self.use_dynamicemb else ShardingType
        known = [kind.value for kind in kinds]
        for kind in self._list("sharding_types", str):
            if kind not in known:
                raise ValueError(
                    f"{self._where('sharding_types')}: expected {', '.join(known)}; found {kind!r}"
                )
        for name in ("compute_kernels", "feature_names"):
            self._list(name, str)
        for name in ("pooling_factors", "num_poolings"):
            for each in self._list(name):
                real(self._where(name), each)
        for each in self._list("batch_sizes"):
            integer(self._where("batch_sizes"), each, 1)
        if self.min_partition is not None:
            integer(self._where("min_partition"), self.min_partition, 1)
        if self.enforce_hbm is not None:
            boolean(self._where("enforce_hbm"), self.enforce_hbm)
        if self.device_group is not None:
            one_of(self._where("device_group"), self.device_group, ("cpu", "cuda"))
        self._refuse()
        if not isinstance(self.dynamicemb_options, DynamicEmbTableOptions):
            raise TypeError(
                f"{self._where('dynamicemb_options')}: expected DynamicEmbTableOptions, found {self.dynamicemb_options!r}"
            )

    def _list(self, name, kind=object):
        found = getattr(self, name)
        return () if found is None else listed(self._where(name), found, kind)

    def _refuse(self):
        for field in dataclasses.fields(self):
            found = getattr(self, field.name)
            if field.name in _INSTEAD and found is not None and found is not False:
                raise NotImplementedError(
                    f"{self._where(field.name)}: expected {field.default}, found {found!r}: {_INSTEAD[field.name]}"
                )
        mode, where = self.bounds_check_mode, self._where("bounds_check_mode")
        if mode is not None and instance(where, mode, BoundsCheckMode).name in (
            "WARNING",
            "IGNORE",
        ):
            raise NotImplementedError(
                f"{where}: expected None, NONE or FATAL, found {mode.name}: a static table refuses an id that it does not have"
            )
