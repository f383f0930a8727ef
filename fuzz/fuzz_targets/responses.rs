//! An answer in the format of OpenAI's Responses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_agent::provider::custom::OpenAiResponses;

fuzz_target!(|body: &[u8]| omni_agent_fuzz::answer(&OpenAiResponses::default(), body));
