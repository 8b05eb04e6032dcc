"""Words and YAML to a typed JobSpec: parsing, composition, sweeps, the schema of keys."""
