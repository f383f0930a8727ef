//! Output schemas: the forms in which a request asks for a value, and the decoding of the responses. No matter how a wire
//! format requests the value, the decoded response contains the value as text.
//!
//! If a service does not support output schemas, an additional tool is declared, the output tool. The request forces that
//! tool if the service allows this. The input of the tool is the requested value. If the model may use other tools too,
//! the request forces the use of a tool, but not of a specific one. The model then calls the other tools first, and the
//! output tool last. If a response uses the output tool and other tools, the turn continues with the other tools. The
//! value stays in that response as a text, and the next step requests the value again.
//!
//! If a service accepts only objects, a value that is not an object is requested as the only member of an object.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::{Value, json};

use super::{
    Decoder, Encoded, Frame, OutputSupport,
    decoding::{DecodeResult, renamed},
    names::{DeclaredNames, NAME_LIMIT},
    strict::strict,
};
use crate::{
    provider::{
        BlockStart, Delta, Fold, MessageDelta, OutputSchema, Part, Request, StopReason, ToolChoice,
        output::WRAPPER,
    },
    tool::{Schema, ToolSet, declared_tool_with_schema, walk::redirect},
};

/// The warning for an output schema that is sent only as a part of the system prompt.
pub(super) const UNENFORCED: &str = "`output` is not enforced: the schema is only part of the system prompt";

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
    let (name, schema) = (tool_name(request, output), output_tool_schema(output)?);
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
pub(super) fn tool_is_needed(request: &Request) -> bool {
    request.model_info.as_ref().is_some_and(|info| info.structured_output == Some(false))
}

/// Returns whether the request's model may use tools. Also returns true if the catalogue does not know.
pub(super) fn tool_is_possible(request: &Request) -> bool {
    request.model_info.as_ref().is_none_or(|info| info.tools != Some(false))
}

/// Returns how to decode a response that gives the value through the output tool.
pub(super) fn tool_reading(request: &Request) -> OutputDecodingPlan {
    let Some(output) = request.options.output().filter(|output| output_tool_schema(output).is_some()) else {
        return OutputDecodingPlan::default();
    };
    let wrapped = wrapped(output.schema.as_value()).is_some();
    OutputDecodingPlan { tool: Some(tool_name(request, output)), wrapped, enforced: false }
}

/// Returns a name for the output tool that no other tool has.
fn tool_name(request: &Request, output: &OutputSchema) -> String {
    let stem = schema_name(output);
    let is_free = |name: &String| request.tools.get(name).is_none();
    let others = (2..).map(|number| format!("{stem}_{number}"));
    std::iter::once(stem.clone()).chain(others).find(is_free).unwrap_or(stem)
}

fn output_tool_schema(output: &OutputSchema) -> Option<Schema> {
    match wrapped(output.schema.as_value()) {
        Some(object) => Schema::new(object).ok(),
        None => output.schema.error().is_none().then(|| output.schema.clone()),
    }
}

/// Returns the name of a schema, reduced to the allowed characters.
pub(super) fn schema_name(output: &OutputSchema) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let mut name: String = output.name.chars().map(allowed).take(NAME_LIMIT).collect();
    if name.is_empty() {
        name.push_str("output");
    }
    name
}

/// The form in which a request asks for JSON.
pub(super) enum JsonObjectOrSchema {
    /// The request asks for any JSON object.
    Object,
    /// The request asks for a value that fits this schema. The flag states whether the schema is strict.
    Schema(Value, bool),
}

/// Returns how an output schema is sent to the request's model. `support` states how the service generally accepts
/// output schemas.
pub(super) fn supported(support: OutputSupport, request: &Request) -> OutputSupport {
    let support = match support {
        OutputSupport::Strict | OutputSupport::Schema if tool_is_needed(request) => OutputSupport::Tool,
        support => support,
    };
    match support {
        OutputSupport::Tool if !tool_is_possible(request) => OutputSupport::None,
        support => support,
    }
}

/// Returns the form in which a request asks for this output schema. If the schema is sent only in the system prompt, adds
/// a warning and returns `None`.
pub(super) fn format(
    support: OutputSupport,
    output: &OutputSchema,
    out: &mut Encoded,
) -> Option<JsonObjectOrSchema> {
    let schema = output.schema.as_value();
    Some(match support {
        OutputSupport::None => {
            out.warn(UNENFORCED);
            return None;
        }
        OutputSupport::Object => JsonObjectOrSchema::Object,
        OutputSupport::Strict => {
            if let Some((schema, _)) = strict(schema) {
                JsonObjectOrSchema::Schema(schema, true)
            } else {
                out.warn("`output` is sent without `strict`: strict mode cannot express the schema");
                // The service requires an object at the root even without `strict`, so any other schema is wrapped.
                JsonObjectOrSchema::Schema(wrapped(schema).unwrap_or_else(|| schema.clone()), false)
            }
        }
        // With `OutputSupport::Tool`, an output tool has usually replaced the schema before this point. The schema is
        // still here only if it cannot be the schema of a tool.
        OutputSupport::Schema | OutputSupport::Tool => JsonObjectOrSchema::Schema(schema.clone(), false),
    })
}

/// Returns how to decode the response to a request whose output schema is sent according to `support`. `enforced`
/// indicates whether the service guarantees that responses fit a strict schema.
pub(super) fn reading(support: OutputSupport, enforced: bool, request: &Request) -> OutputDecodingPlan {
    let Some(output) = request.options.output() else {
        return OutputDecodingPlan::default();
    };
    let schema = output.schema.as_value();
    match support {
        OutputSupport::Tool => tool_reading(request),
        OutputSupport::Strict => match strict(schema) {
            Some((_, wrapped)) => OutputDecodingPlan { tool: None, wrapped, enforced },
            None => {
                OutputDecodingPlan { wrapped: wrapped(schema).is_some(), ..OutputDecodingPlan::default() }
            }
        },
        OutputSupport::Object | OutputSupport::None => {
            OutputDecodingPlan { wrapped: wrapped(schema).is_some(), ..OutputDecodingPlan::default() }
        }
        OutputSupport::Schema => OutputDecodingPlan::default(),
    }
}

/// Returns the system prompt. If `support` needs it, an instruction follows to answer with JSON that fits the schema. If
/// the schema describes a value that is not an object, the value is requested as a member of an object, because the JSON
/// that services guarantee is always an object.
pub(super) fn system(request: &Request, support: OutputSupport) -> Cow<'_, str> {
    let system = request.system.as_deref().unwrap_or_default();
    let Some(output) = request.options.output().filter(|_| support.needs_words()) else {
        return Cow::Borrowed(system);
    };
    let mut text = system.to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("Answer with one JSON object and nothing else. It must fit this JSON Schema:\n");
    let schema = output.schema.as_value();
    text.push_str(&wrapped(schema).as_ref().unwrap_or(schema).to_string());
    Cow::Owned(text)
}

/// Returns the schema of an object whose only member is a value that fits `schema`. Returns `None` if `schema` accepts
/// only objects.
pub(super) fn wrapped(schema: &Value) -> Option<Value> {
    if is_object(schema) {
        return None;
    }
    let mut inner = schema.clone();
    // Shared definitions stay at the top level, so references to them do not change.
    redirect(&mut inner, |reference| {
        let pointer = reference.strip_prefix('#')?;
        let is_shared = ["/$defs/", "/definitions/"].iter().any(|shared| pointer.starts_with(shared));
        (!is_shared).then(|| format!("#/properties/{WRAPPER}{pointer}"))
    });
    let mut out = json!({
        "type": "object",
        "properties": {},
        "required": [WRAPPER],
        "additionalProperties": false,
    });
    for key in ["$schema", "$defs", "definitions"] {
        if let Some(kept) = inner.as_object_mut().and_then(|inner| inner.shift_remove(key)) {
            out[key] = kept;
        }
    }
    out["properties"] = json!({WRAPPER: inner});
    Some(out)
}

/// Returns whether the schema accepts only objects.
fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Extracts a value's JSON text from the object that encloses it, while the text is streamed. A text that is not such
/// an object is returned unchanged.
#[derive(Debug, Default)]
struct OutputUnwrapper {
    state: OutputUnwrapperState,
    /// The received text that may belong to the value or to the enclosing object.
    held: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum OutputUnwrapperState {
    /// The beginning of the object has not arrived completely.
    #[default]
    Before,
    /// The text is inside the value or after the value.
    Inside,
    /// The text is not an object that encloses the value, or the text has ended.
    Outside,
}

/// The name of the enclosing object's only member, as JSON text.
const WRAPPER_TEXT: &str = "\"value\"";

/// The maximum number of bytes that are held back because they may be the beginning or the end of the object.
const MAX_HELD: usize = 1024;

impl OutputUnwrapper {
    /// Adds text, and returns the text that is now known to belong to the value.
    fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.state == OutputUnwrapperState::Before {
            match beginning(&self.held) {
                OutputWrapperDetection::Object(length) => {
                    self.state = OutputUnwrapperState::Inside;
                    self.held.drain(..length);
                }
                OutputWrapperDetection::Open if self.held.len() <= MAX_HELD => return String::new(),
                OutputWrapperDetection::Open | OutputWrapperDetection::Other => {
                    self.state = OutputUnwrapperState::Outside;
                }
            }
        }
        match self.state {
            OutputUnwrapperState::Before => String::new(),
            OutputUnwrapperState::Outside => std::mem::take(&mut self.held),
            OutputUnwrapperState::Inside => {
                let kept = self.held.trim_end();
                let kept = kept.strip_suffix('}').unwrap_or(kept).trim_end().len();
                let kept = if self.held.len() - kept > MAX_HELD { self.held.len() } else { kept };
                let rest = self.held.split_off(kept);
                std::mem::replace(&mut self.held, rest)
            }
        }
    }

    /// Ends the text, and returns the part that was held back, unless this part is the end of the enclosing object.
    fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, OutputUnwrapperState::Outside) {
            OutputUnwrapperState::Inside => String::new(),
            OutputUnwrapperState::Before | OutputUnwrapperState::Outside => held,
        }
    }
}

/// How a text begins.
enum OutputWrapperDetection {
    /// The text begins with the object. The value in the object starts at this position.
    Object(usize),
    /// The text is too short to decide.
    Open,
    /// The text begins differently.
    Other,
}

fn beginning(text: &str) -> OutputWrapperDetection {
    let mut rest = text.trim_start();
    for token in ["{", WRAPPER_TEXT, ":"] {
        match rest.strip_prefix(token) {
            Some(after) => rest = after.trim_start(),
            None if token.starts_with(rest) => return OutputWrapperDetection::Open,
            None => return OutputWrapperDetection::Other,
        }
    }
    // White space before the value may still follow.
    if rest.is_empty() {
        OutputWrapperDetection::Open
    } else {
        OutputWrapperDetection::Object(text.len() - rest.len())
    }
}

/// How the response to a request is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OutputDecodingPlan {
    /// The name of the tool whose input is the requested value.
    pub(super) tool: Option<String>,
    /// Whether the value is requested as the only member of an enclosing object.
    pub(super) wrapped: bool,
    /// Whether the service guarantees that the response fits the schema.
    pub(super) enforced: bool,
}

/// Returns a decoder that restores the `declared` names of tools and properties in the deltas of `inner`, and the
/// requested value.
pub(super) fn decoder(
    inner: impl Decoder + 'static,
    declared: DeclaredNames,
    reading: OutputDecodingPlan,
) -> Box<dyn Decoder> {
    let has_names = !declared.tools.is_empty() || !declared.properties.is_empty();
    if !has_names && reading == OutputDecodingPlan::default() {
        return Box::new(inner);
    }
    let (blocks, held, fresh) = (Vec::new(), BTreeMap::new(), Vec::new());
    Box::new(OutputRestoringDecoder { inner, declared, reading, blocks, held, uses_tools: false, fresh })
}

struct OutputRestoringDecoder<D> {
    inner: D,
    declared: DeclaredNames,
    reading: OutputDecodingPlan,
    /// How each block is translated.
    blocks: Vec<OutputBlockTranslation>,
    /// The inputs whose properties have other names on the wire, by block: the name of the tool and the JSON text so
    /// far. An input is held until it is complete.
    held: BTreeMap<usize, (String, String)>,
    /// Whether the response uses tools of the application.
    uses_tools: bool,
    /// The deltas that `inner` just emitted. Empty between two frames.
    fresh: Vec<Delta>,
}

enum OutputBlockTranslation {
    /// A block that is passed on unchanged.
    Other,
    /// A text. If there is an unwrapper, the value is extracted from the object that encloses it.
    Text(Option<OutputUnwrapper>),
    /// A use of the output tool, which becomes a text block.
    Output { unwrapper: Option<OutputUnwrapper>, empty: bool, ended: bool },
}

impl<D: Decoder> OutputRestoringDecoder<D> {
    fn unwrapper(&self) -> Option<OutputUnwrapper> {
        self.reading.wrapped.then(OutputUnwrapper::default)
    }

    fn translate(&mut self, deltas: &mut Vec<Delta>) {
        for delta in std::mem::take(&mut self.fresh) {
            match delta {
                Delta::Start { index, block } => self.start(index, block, deltas),
                Delta::Extend { index, part } => self.extend(index, part, deltas),
                Delta::End { index } => {
                    self.release(index, deltas);
                    self.end_block(index, deltas);
                }
                Delta::Message(message) => {
                    if message.stop_reason.is_some() {
                        let held: Vec<usize> = self.held.keys().copied().collect();
                        for index in held {
                            self.release(index, deltas);
                        }
                    }
                    self.message(message, deltas);
                }
                retry @ Delta::Retry { .. } => {
                    self.blocks.clear();
                    self.held.clear();
                    self.uses_tools = false;
                    deltas.push(retry);
                }
            }
        }
    }

    fn start(&mut self, index: usize, mut block: BlockStart, deltas: &mut Vec<Delta>) {
        if let BlockStart::ToolUse { name, .. } = &mut block
            && let Some(declared) = self.declared.tools.get(name)
        {
            name.clone_from(declared);
        }
        if let BlockStart::ToolUse { name, .. } = &block
            && self.declared.properties.contains_key(name)
        {
            self.held.insert(index, (name.clone(), String::new()));
        }
        let (own, block) = match block {
            BlockStart::ToolUse { name, .. } if self.reading.tool.as_ref() == Some(&name) => {
                let output =
                    OutputBlockTranslation::Output { unwrapper: self.unwrapper(), empty: true, ended: false };
                (output, BlockStart::Text)
            }
            BlockStart::ToolUse { .. } => {
                self.uses_tools = true;
                (OutputBlockTranslation::Other, block)
            }
            BlockStart::Text if self.reading.tool.is_none() => {
                (OutputBlockTranslation::Text(self.unwrapper()), block)
            }
            _ => (OutputBlockTranslation::Other, block),
        };
        if index == self.blocks.len() {
            self.blocks.push(own);
        }
        deltas.push(Delta::Start { index, block });
    }

    /// Emits the input that was held, with the declared names of its properties. An input that is not an object is
    /// emitted unchanged.
    fn release(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        if let Some((tool, json)) = self.held.remove(&index)
            && !json.is_empty()
        {
            let input = self.declared.properties.get(&tool).and_then(|names| renamed(&json, names));
            self.extend(index, Part::Input(input.unwrap_or(json)), deltas);
        }
    }

    fn extend(&mut self, index: usize, part: Part, deltas: &mut Vec<Delta>) {
        if let (Some((_, held)), Part::Input(more)) = (self.held.get_mut(&index), &part) {
            held.push_str(more);
            // An input that is too long is emitted, and then rejected.
            if held.len() > Fold::LIMIT {
                self.release(index, deltas);
            }
            return;
        }
        let part = match (self.blocks.get_mut(index), part) {
            (Some(OutputBlockTranslation::Output { unwrapper, empty, .. }), Part::Input(json)) => {
                *empty &= json.is_empty();
                Part::Text(unwrapped(unwrapper.as_mut(), json))
            }
            // A signature belongs to a tool use. This block is now a text, so the signature is dropped.
            (Some(OutputBlockTranslation::Output { .. }), _) => return,
            (Some(OutputBlockTranslation::Text(Some(unwrapper))), Part::Text(text)) => {
                Part::Text(unwrapped(Some(unwrapper), text))
            }
            (_, part) => part,
        };
        if !matches!(&part, Part::Text(text) if text.is_empty()) {
            deltas.push(Delta::Extend { index, part });
        }
    }

    fn end_block(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        match self.blocks.get_mut(index) {
            // The stop reason decides whether a missing input means an empty object, so this block ends later.
            Some(OutputBlockTranslation::Output { empty: true, ended, .. }) => {
                *ended = true;
                return;
            }
            Some(
                OutputBlockTranslation::Output { unwrapper, .. } | OutputBlockTranslation::Text(unwrapper),
            ) => {
                rest(index, unwrapper.as_mut(), deltas);
            }
            _ => {}
        }
        deltas.push(Delta::End { index });
    }

    fn message(&mut self, mut message: Box<MessageDelta>, deltas: &mut Vec<Delta>) {
        if let Some(reason) = &mut message.stop_reason {
            let whole = matches!(reason, StopReason::Stop | StopReason::ToolUse);
            let mut answered = false;
            for (index, block) in self.blocks.iter_mut().enumerate() {
                match block {
                    OutputBlockTranslation::Output { unwrapper, empty, ended } => {
                        answered = true;
                        if *empty && whole {
                            deltas.push(Delta::Extend { index, part: Part::Text("{}".to_owned()) });
                        }
                        rest(index, unwrapper.as_mut(), deltas);
                        if std::mem::take(empty) && *ended {
                            deltas.push(Delta::End { index });
                        }
                    }
                    OutputBlockTranslation::Text(unwrapper) => rest(index, unwrapper.as_mut(), deltas),
                    OutputBlockTranslation::Other => {}
                }
            }
            if answered && !self.uses_tools && *reason == StopReason::ToolUse {
                *reason = StopReason::Stop;
            }
            message.output_enforced |= self.reading.enforced;
        }
        deltas.push(Delta::Message(message));
    }
}

fn unwrapped(unwrapper: Option<&mut OutputUnwrapper>, text: String) -> String {
    match unwrapper {
        Some(unwrapper) => unwrapper.push(&text),
        None => text,
    }
}

fn rest(index: usize, unwrapper: Option<&mut OutputUnwrapper>, deltas: &mut Vec<Delta>) {
    let text = unwrapper.map(OutputUnwrapper::finish).unwrap_or_default();
    if !text.is_empty() {
        deltas.push(Delta::Extend { index, part: Part::Text(text) });
    }
}

impl<D: Decoder> Decoder for OutputRestoringDecoder<D> {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let decoded = self.inner.decode(frame, &mut self.fresh);
        self.translate(deltas);
        decoded
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        let ended = self.inner.end(&mut self.fresh);
        self.translate(deltas);
        ended
    }
}
