"""The catalog: one file per framework, each loaded when its framework is."""
