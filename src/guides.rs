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

/// Includes a guide from the folder `docs`. Its links to other guides are definitions such as `[durable]: durable.md`, for
/// readers of the files. The definitions below come first, so they apply in the documentation of the crate. The programs
/// of the guides are compiled with all features only, because some of them need optional ones.
macro_rules! guide {
    ($name:ident, $file:literal) => {
        #[doc = "[durable]: crate::guides::durable_turns"]
        #[doc = "[many-conversations]: crate::guides::many_conversations"]
        #[doc = "[mcp]: crate::guides::mcp_servers"]
        #[doc = "[sessions-and-branches]: crate::guides::sessions_and_branches"]
        #[doc = "[testing]: crate::guides::testing"]
        #[doc = "[tools-and-approvals]: crate::guides::tools_and_approvals"]
        #[doc = "[web]: crate::guides::web_services"]
        #[doc = ""]
        #[cfg_attr(
            any(
                not(doctest),
                all(
                    feature = "acp",
                    feature = "mcp-auth",
                    feature = "mcp-server",
                    feature = "otel-metrics",
                    feature = "postgres",
                    feature = "sqlite",
                    feature = "web"
                )
            ),
            doc = include_str!($file)
        )]
        pub mod $name {}
    };
}

guide!(getting_started, "../docs/getting-started.md");
guide!(tools_and_approvals, "../docs/tools-and-approvals.md");
guide!(sessions_and_branches, "../docs/sessions-and-branches.md");
guide!(stores, "../docs/stores.md");
guide!(many_conversations, "../docs/many-conversations.md");
guide!(durable_turns, "../docs/durable.md");
guide!(web_services, "../docs/web.md");
guide!(testing, "../docs/testing.md");
guide!(telemetry, "../docs/telemetry.md");
guide!(extending, "../docs/extending.md");
guide!(mcp_servers, "../docs/mcp.md");
guide!(serving, "../docs/serving.md");
guide!(from_elixir, "../docs/from-elixir.md");
guide!(from_rig, "../docs/from-rig.md");
guide!(from_yoagent, "../docs/from-yoagent.md");
