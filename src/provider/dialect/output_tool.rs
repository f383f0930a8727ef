//! The output tool. If a service does not support output schemas, an additional tool is declared, and the request
//! forces that tool if the service allows this. The input of the tool is the requested value.
//!
//! If the model may use other tools too, the request forces the use of a tool, but not of a specific one. The model
//! then calls the other tools first, and the output tool last. If a response uses the output tool and other tools, the
//! turn continues with the other tools. The value stays in that response as a text, and the next step requests the
//! value again.

use std::borrow::Cow;

use crate::{
    provider::{
        OutputSchema, Request, ToolChoice,
        dialect::{openai::schema_name, output::Reading, wrapping::wrapped},
    },
    tool::{Schema, ToolSet, declared_tool_with_schema},
};

const DESCRIPTION: &str = "Gives the final answer. Call it once, when everything else is done.";

/// Returns the request to send. If `tool` is `Some`, the output tool replaces the output schema. The value in `tool`
/// states whether the service can be asked to force a tool.
pub(super) fn prepared(request: &Request, tool: Option<bool>) -> Cow<'_, Request> {
    tool.and_then(|forced| with_tool(request, forced)).map_or(Cow::Borrowed(request), Cow::Owned)
}

/// Returns the request with the output tool instead of its output schema. `forced` states whether the service can be
/// asked to force a tool. If the request forbids the use of tools, the output tool is the only tool.
///
/// Returns `None` if the request has no output schema, or if the schema cannot be the schema of a tool.
fn with_tool(request: &Request, forced: bool) -> Option<Request> {
    let output = request.options.output()?;
    let (name, schema) = (name(request, output), schema(output)?);
    let mut request = request.clone();
    let choice = match request.options.fields_mut().tool_choice.take() {
        Some(ToolChoice::None) if !forced => {
            request.tools = ToolSet::new();
            None
        }
        choice if !forced => choice,
        Some(ToolChoice::Tool(other)) if request.tools.get(&other).is_some() => Some(ToolChoice::Tool(other)),
        Some(ToolChoice::None) => Some(ToolChoice::Tool(name.clone())),
        _ if request.tools.is_empty() => Some(ToolChoice::Tool(name.clone())),
        _ => Some(ToolChoice::Required),
    };
    if choice != Some(ToolChoice::Tool(name.clone())) {
        let mut system = request.system.as_deref().unwrap_or_default().to_owned();
        if !system.is_empty() {
            system.push_str("\n\n");
        }
        system.push_str("Give your final answer by calling the tool `");
        system.push_str(&name);
        system.push_str("`, and in no other way.");
        request.system = Some(system.into());
    }
    request.options.set_tool_choice(choice);
    request.options.set_output(None);
    request.tools = request.tools.with(declared_tool_with_schema(&name, DESCRIPTION, schema)).ok()?;
    Some(request)
}

/// Returns whether the catalogue knows that the request's model cannot guarantee an output schema.
pub(super) fn is_needed(request: &Request) -> bool {
    request.model_info.as_ref().is_some_and(|info| info.structured_output == Some(false))
}

/// Returns whether the request's model may use tools. Also returns true if the catalogue does not know.
pub(super) fn is_possible(request: &Request) -> bool {
    request.model_info.as_ref().is_none_or(|info| info.tools != Some(false))
}

/// Returns how to decode a response that gives the value through the output tool.
pub(super) fn reading(request: &Request) -> Reading {
    let Some(output) = request.options.output().filter(|output| schema(output).is_some()) else {
        return Reading::default();
    };
    let wrapped = wrapped(output.schema.as_value()).is_some();
    Reading { tool: Some(name(request, output)), wrapped, enforced: false }
}

/// Returns a name for the output tool that no other tool has.
fn name(request: &Request, output: &OutputSchema) -> String {
    let stem = schema_name(output);
    let is_free = |name: &String| request.tools.get(name).is_none();
    let others = (2..).map(|number| format!("{stem}_{number}"));
    std::iter::once(stem.clone()).chain(others).find(is_free).unwrap_or(stem)
}

fn schema(output: &OutputSchema) -> Option<Schema> {
    match wrapped(output.schema.as_value()) {
        Some(object) => Schema::new(object).ok(),
        None => output.schema.error().is_none().then(|| output.schema.clone()),
    }
}
