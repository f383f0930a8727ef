//! An answer in the format of Anthropic's Messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_agent::provider::custom::AnthropicMessages;

fuzz_target!(|body: &[u8]| omni_agent_fuzz::answer(&AnthropicMessages::default(), body));
