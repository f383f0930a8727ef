//! An answer in the format of Google's Gemini.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_agent::provider::custom::GoogleGemini;

fuzz_target!(|body: &[u8]| omni_agent_fuzz::answer(&GoogleGemini::default(), body));
