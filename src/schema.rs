//! JSON Schemas of updates and commands, and the OpenAPI document of the routes of feature `web`, for clients in other
//! languages.
//!
//! Programs that generate types for a client can read the same documents from the files in the folder `schema` of the
//! published crate. With the feature `schema`, the types of updates and commands implement
//! [`JsonSchema`](schemars::JsonSchema), so a service can describe them in its own API.
//!
//! [`UPDATES`] and [`COMMANDS`] are JSON Schema 2020-12. Each type is an entry of `$defs`, such as
//! `#/$defs/SessionUpdate`. A whole document, used as a schema, accepts a value of any of its main types.
//!
//! Within a minor version of the crate, the schemas only grow: types, members and alternatives are added, and none is
//! removed or changed. Objects therefore accept members that the schema does not list, and a client ignores unknown
//! members and unknown events. Only a choice that is written as an object with one member, such as
//! `{"reject": "No."}`, accepts no other member.
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # use omni_agent::testing::ScriptedProvider;
//! # let agent = omni_agent::Agent::builder().model(ScriptedProvider::new([]).model()).start().await?;
//! use omni_agent::{schema, serde_json, tool::Schema};
//!
//! let schema = Schema::new(serde_json::from_str(schema::UPDATES)?)?;
//! let mut updates = agent.subscribe().await?;
//! drop(agent);
//! let closed = serde_json::to_value(updates.next().await)?;
//! assert_eq!(schema.validate(&closed), Ok(()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(all(test, feature = "schema", feature = "web"))]
mod generate;

/// The schema of the JSON form of each [`Update`](crate::subscription::Update) of agents, sessions and managers, with
/// all snapshots and events.
///
/// The main types are `SessionUpdate`, `AgentUpdate` and `ManagerUpdate`.
pub const UPDATES: &str = include_str!("../schema/updates.json");

/// The schema of [`SessionCommand`](crate::session::SessionCommand) and [`SessionAnswer`](crate::session::SessionAnswer),
/// which are the main types.
///
/// The document also contains `Listing`, and the results of lists, searches and sums: `Listed`, `Found` and `UsageSum`.
/// The schema accepts all forms that the crate accepts, so members with defaults may be missing.
pub const COMMANDS: &str = include_str!("../schema/commands.json");

/// The OpenAPI 3.1 document of the native routes of feature `web`, with all parameters, bodies, answers, problems and
/// events.
///
/// `Web::router` serves it at `GET /openapi.json`, with the path under which the router is nested.
pub const OPENAPI: &str = include_str!("../schema/openapi.json");
