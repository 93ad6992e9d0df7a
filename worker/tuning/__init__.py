"""Find settings of the engine that are fast enough and good enough, by measuring them on a workload."""
