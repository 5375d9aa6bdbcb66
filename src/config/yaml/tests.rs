//! Tests of the YAML reader.
