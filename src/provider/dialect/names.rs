//! Conversion of names to names that services accept: those of tools, for declared tools and for tool uses in a
//! conversation, and those of the properties of tool inputs.
//!
//! A model may have called a tool that was never declared, with a name that is invalid for a tool. The call and its
//! error stay in the history. Without the conversion, the service would reject every later request because of this
//! name.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Map, Value};

use super::tool_schema::{tool_schema, with_names};
use crate::{provider::Request, tool::Schema};

/// The maximum length of the name of a schema or a tool, in characters:
/// <https://platform.openai.com/docs/api-reference/chat/create>.
pub(super) const NAME_LIMIT: usize = 64;

/// The maximum length of the name of a property, in characters. Anthropic rejects a request with a longer name.
const PROPERTY_LIMIT: usize = 64;

/// The names of a request's tools on the wire.
///
/// A name on the wire consists of letters, digits, `_`, `-` and the characters in `also`. It has at most `limit`
/// characters and begins with a letter or `_`. The names of declared tools are distinct. Tools that are called but not
/// declared may share a name, because calls and results are matched by their ids.
pub(super) struct ToolNames<'a> {
    request: &'a Request,
    limit: usize,
    also: &'static str,
    /// Distinct names for declared tools whose names on the wire would otherwise be equal.
    apart: HashMap<&'a str, String>,
    /// The properties that have other names on the wire, by tool: their names on the wire by their own names.
    properties: HashMap<&'a str, HashMap<&'a str, String>>,
}

/// The declared names that differ from the names on the wire, by their names on the wire.
#[derive(Default)]
pub(super) struct DeclaredNames {
    pub(super) tools: HashMap<String, String>,
    /// The names of properties, by the declared name of the tool.
    pub(super) properties: HashMap<String, HashMap<String, String>>,
}

impl<'a> ToolNames<'a> {
    pub(super) fn of(request: &'a Request, limit: usize, also: &'static str) -> Self {
        let names = request.tools.iter().map(|tool| tool.name());
        let names: Vec<_> = names.map(|name| (name, cleaned(name, limit, also))).collect();
        let mut uses: HashMap<&str, usize> = HashMap::new();
        for (_, clean) in &names {
            *uses.entry(clean).or_default() += 1;
        }
        let shared =
            |(_, clean): &&(&str, Cow<'_, str>)| matches!(clean, Cow::Owned(_)) && uses[&**clean] > 1;
        let apart = names.iter().filter(shared).map(|(name, clean)| (*name, distinct(name, clean, limit)));
        Self { request, limit, also, apart: apart.collect(), properties: HashMap::new() }
    }

    /// Also converts the names of properties at the top level of tool inputs. The names on the wire consist of letters,
    /// digits, `_`, `-` and `.`, and have at most [`PROPERTY_LIMIT`] characters.
    pub(super) fn with_properties(mut self) -> Self {
        for tool in &self.request.tools {
            let properties = property_names(tool_schema(tool.schema()));
            if !properties.is_empty() {
                self.properties.insert(tool.name(), properties);
            }
        }
        self
    }

    /// Returns the schema of this tool on the wire.
    pub(super) fn schema(&self, tool: &str, schema: &Schema) -> Value {
        let schema = tool_schema(schema);
        match self.properties.get(tool) {
            Some(names) => with_names(schema, |name| names.get(name).map_or(name, |wire| wire).to_owned()),
            None => schema.clone(),
        }
    }

    /// Returns the input of a use of this tool on the wire.
    pub(super) fn input(&self, tool: &str, input: Value) -> Value {
        match (self.properties.get(tool), input) {
            (Some(names), Value::Object(members)) => {
                let members = members.into_iter();
                let wire = |name: String| names.get(&*name).cloned().unwrap_or(name);
                Value::Object(members.map(|(name, value)| (wire(name), value)).collect::<Map<_, _>>())
            }
            (_, input) => input,
        }
    }

    /// Returns the name of this tool on the wire.
    pub(super) fn get<'n>(&self, name: &'n str) -> Cow<'n, str> {
        match self.apart.get(name) {
            Some(distinct) => distinct.clone().into(),
            None => cleaned(name, self.limit, self.also),
        }
    }

    /// Returns the declared names by the names on the wire. Only names that differ are included.
    pub(super) fn declared(&self) -> DeclaredNames {
        let names = self.request.tools.iter().map(|tool| (self.get(tool.name()), tool.name()));
        let others = names.filter(|(wire, name)| wire != name);
        let by_wire = |names: &HashMap<&str, String>| {
            names.iter().map(|(name, wire)| (wire.clone(), (*name).to_owned())).collect()
        };
        let properties = self.properties.iter().map(|(tool, names)| ((*tool).to_owned(), by_wire(names)));
        DeclaredNames {
            tools: others.map(|(wire, name)| (wire.into_owned(), name.to_owned())).collect(),
            properties: properties.collect(),
        }
    }
}

/// Returns other names for the properties whose names the service rejects, by their own names.
fn property_names(schema: &Value) -> HashMap<&str, String> {
    let fits = |name: &&str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        (1..=PROPERTY_LIMIT).contains(&name.len()) && name.chars().all(fits)
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = || properties.into_iter().flat_map(Map::keys).map(String::as_str);
    if names().all(|name| fits(&name)) {
        return HashMap::new();
    }
    let mut taken: HashSet<String> = names().filter(fits).map(ToOwned::to_owned).collect();
    let others = names().filter(|name| !fits(name)).map(|name| {
        let clean = cleaned(name, PROPERTY_LIMIT, ".").into_owned();
        let wire = if taken.contains(&clean) { distinct(name, &clean, PROPERTY_LIMIT) } else { clean };
        taken.insert(wire.clone());
        (name, wire)
    });
    others.collect()
}

/// Returns the converted name `clean` with a mark, so that it differs from that of any other name than `name`.
fn distinct(name: &str, clean: &str, limit: usize) -> String {
    let mark = format!("_{:016x}", hash(name));
    let mut distinct: String = clean.chars().take(limit.saturating_sub(mark.len())).collect();
    distinct.push_str(&mark);
    distinct
}

fn cleaned<'a>(name: &'a str, limit: usize, also: &str) -> Cow<'a, str> {
    if name.is_empty() {
        return Cow::Borrowed("tool");
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-') || also.contains(c);
    let begins = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins(name) && name.len() <= limit && name.chars().all(fits) {
        return Cow::Borrowed(name);
    }
    let mut clean: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(limit).collect();
    if !begins(&clean) {
        clean.insert(0, '_');
        clean.truncate(limit);
    }
    Cow::Owned(clean)
}

/// The FNV-1a hash. The function must never change, because its results are part of stored conversations.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
