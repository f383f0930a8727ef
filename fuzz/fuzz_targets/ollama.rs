//! An answer in the format of Ollama's chat.
#![no_main]

use libfuzzer_sys::fuzz_target;
use omni_agent::provider::custom::OllamaChat;

fuzz_target!(|body: &[u8]| omni_agent_fuzz::answer(&OllamaChat::default(), body));
