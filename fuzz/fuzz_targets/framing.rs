//! The bytes of any answer, split into events.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| omni_agent_fuzz::framing(body));
