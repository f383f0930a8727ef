//! A record of a turn in flight, stored, read and continued.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| omni_agent_fuzz::turn(text));
