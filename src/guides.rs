//! Guides, in reading order.
//!
//! 1. [Getting started](getting_started)
//! 2. [Tools and approvals](tools_and_approvals)
//! 3. [Sessions and branches](sessions_and_branches)
//! 4. [Stores](stores)
//! 5. [Many conversations](many_conversations)
//! 6. [Turns that survive a crash](durable_turns)
//! 7. [A web service](web_services)
//! 8. [Testing an application](testing)
//! 9. [Tools of MCP servers](mcp_servers)
//! 10. [Serving an agent to other programs](serving)
//! 11. [Telemetry](telemetry)
//! 12. [Writing a provider, a store or a backend](extending)
//! 13. [Coming from Elixir's Omni Agent](from_elixir)
//! 14. [Coming from rig](from_rig)
//! 15. [Coming from yoagent](from_yoagent)

#[doc = include_str!("../docs/getting-started.md")]
pub mod getting_started {}
#[doc = include_str!("../docs/tools-and-approvals.md")]
pub mod tools_and_approvals {}
#[doc = include_str!("../docs/sessions-and-branches.md")]
pub mod sessions_and_branches {}
#[doc = include_str!("../docs/stores.md")]
pub mod stores {}
#[doc = include_str!("../docs/many-conversations.md")]
pub mod many_conversations {}
#[doc = include_str!("../docs/durable.md")]
pub mod durable_turns {}
// This guide links to items that need the feature `web`.
#[doc = include_str!("../docs/web.md")]
#[cfg_attr(not(feature = "web"), allow(rustdoc::broken_intra_doc_links))]
pub mod web_services {}
#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
#[doc = include_str!("../docs/telemetry.md")]
pub mod telemetry {}
#[doc = include_str!("../docs/extending.md")]
pub mod extending {}
#[doc = include_str!("../docs/mcp.md")]
pub mod mcp_servers {}
#[doc = include_str!("../docs/serving.md")]
pub mod serving {}
#[doc = include_str!("../docs/from-elixir.md")]
pub mod from_elixir {}
#[doc = include_str!("../docs/from-rig.md")]
pub mod from_rig {}
#[doc = include_str!("../docs/from-yoagent.md")]
pub mod from_yoagent {}
