"""Writing new keys and values into the paged cache."""

from kernels.kv_write.op import write_kv_

__all__ = ["write_kv_"]
