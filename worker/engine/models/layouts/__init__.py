"""Layouts of quantized weights in checkpoints' tensors; `kernels.quantization` defines their meaning."""
