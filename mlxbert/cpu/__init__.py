"""The backend of a Linux CPU. It is imported only there, by `mlxbert.machine.device` and `mlxbert.nn.ops`."""
