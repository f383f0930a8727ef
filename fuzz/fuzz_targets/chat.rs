//! An answer in the Chat Completions format, including common extensions of services.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_agent::provider::custom::{ChatCompletions, ReasoningReturn};

fuzz_target!(|body: &[u8]| omni_agent_fuzz::answer(
    &ChatCompletions::default().with_reasoning(ReasoningReturn::Details),
    body
));
