//! Guides, in reading order.
//!
//! 1. [Getting started](getting_started)
//! 2. [Tools and approvals](tools_and_approvals)
//! 3. [Sessions and branches](sessions_and_branches)
//! 4. [Long conversations](long_conversations)
//! 5. [Delegation](delegation)
//! 6. [Stores](stores)
//! 7. [Many conversations](many_conversations)
//! 8. [Turns that survive a crash](durable_turns)
//! 9. [A web service](web_services)
//! 10. [Testing an application](testing)
//! 11. [Tools of MCP servers](mcp_servers)
//! 12. [Serving an agent to other programs](serving)
//! 13. [Telemetry](telemetry)
//! 14. [Writing a provider, a store or a backend](extending)
//! 15. [Coming from Elixir's Omni Agent](from_elixir)
//! 16. [Coming from rig](from_rig)
//! 17. [Coming from yoagent](from_yoagent)

/// Includes a guide from the folder `docs`. Its links to other guides are definitions such as `[durable]: durable.md`, for
/// readers of the files. The definitions below come first, so they apply in the documentation of the crate. The programs
/// of a guide are compiled if the features that they need are enabled.
macro_rules! guide {
    ($name:ident, $file:literal $(, $feature:literal)*) => {
        #[doc = "[delegation]: crate::guides::delegation"]
        #[doc = "[durable]: crate::guides::durable_turns"]
        #[doc = "[first]: https://docs.rs/crate/omni-agent/latest/source/examples/first/"]
        #[doc = "[long-conversations]: crate::guides::long_conversations"]
        #[doc = "[many-conversations]: crate::guides::many_conversations"]
        #[doc = "[mcp]: crate::guides::mcp_servers"]
        #[doc = "[sessions-and-branches]: crate::guides::sessions_and_branches"]
        #[doc = "[testing]: crate::guides::testing"]
        #[doc = "[tools-and-approvals]: crate::guides::tools_and_approvals"]
        #[doc = "[web]: crate::guides::web_services"]
        #[doc = ""]
        #[cfg_attr(any(not(doctest), all($(feature = $feature),*)), doc = include_str!($file))]
        pub mod $name {}
    };
}

guide!(getting_started, "../docs/getting-started.md");
guide!(tools_and_approvals, "../docs/tools-and-approvals.md");
guide!(sessions_and_branches, "../docs/sessions-and-branches.md");
guide!(long_conversations, "../docs/long-conversations.md");
guide!(delegation, "../docs/delegation.md");
guide!(stores, "../docs/stores.md", "sqlite", "postgres");
guide!(many_conversations, "../docs/many-conversations.md", "postgres");
guide!(durable_turns, "../docs/durable.md", "sqlite");
guide!(web_services, "../docs/web.md", "web");
guide!(testing, "../docs/testing.md", "http");
guide!(telemetry, "../docs/telemetry.md", "otel-metrics");
guide!(extending, "../docs/extending.md", "http");
guide!(mcp_servers, "../docs/mcp.md", "mcp-auth");
guide!(serving, "../docs/serving.md", "acp", "mcp-server", "web");
guide!(from_elixir, "../docs/from-elixir.md");
guide!(from_rig, "../docs/from-rig.md");
guide!(from_yoagent, "../docs/from-yoagent.md");
