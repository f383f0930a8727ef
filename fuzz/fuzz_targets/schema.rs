//! A JSON Schema for a tool's input and for an answer, encoded in each format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| omni_agent_fuzz::schema(text));
