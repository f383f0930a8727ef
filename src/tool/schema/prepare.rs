//! Prepares a schema for the compiler. This finds the schema's subschemas, removes keywords that can't be checked
//! exactly, and refuses a schema if the compiler or the checker could take too long.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    SchemaError,
    cost::{CostModel, Edge},
    pattern, reference,
    walk::{Step, subschemas},
};
use crate::text::clip;

/// The maximum number of subschemas in a schema. The compiler's work grows with the square of this number.
const MAX_SUBSCHEMAS: usize = 4_096;

/// The maximum size of all regular expressions together, in states of the engine.
const MAX_STATES: usize = 50_000;

/// The maximum length of a regular expression in bytes.
const MAX_PATTERN: usize = 4_096;

/// The maximum number of classes such as `\d` in a regular expression. For each class, the compiler parses the
/// expression again.
const MAX_REWRITES: usize = 100;

/// The maximum number of classes such as `\d` in all regular expressions together.
const MAX_ALL_REWRITES: usize = 2_000;

pub(super) struct Prepared {
    pub(super) document: Value,
    pub(super) cost: CostModel,
}

/// Prepares a schema. Its depth must already be checked.
pub(super) fn prepare(schema: &Value) -> Result<Prepared, SchemaError> {
    let mut document = schema.clone();
    let root_id = reference::root_id(&document).map(ToOwned::to_owned);
    let mut work = Work { id_keywords: reference::id_keywords(&document), root_id, ..Work::default() };
    work.node(String::new())?;
    while let Some((index, path)) = work.open.pop() {
        match document.pointer_mut(&path) {
            Some(Value::Object(schema)) => work.visit(index, &path, schema)?,
            // The target of the reference is not a schema. The compiler will report that.
            Some(_) => {}
            None => return refuse(format!("`$ref` points to {:?}, which does not exist", clip(&path, 200))),
        }
    }
    let cost = work.cost.finish().map_err(|reason| SchemaError(reason.to_owned()))?;
    Ok(Prepared { document, cost })
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError(reason.into()))
}

#[derive(Default)]
struct Work {
    id_keywords: &'static [&'static str],
    /// The schema's id. A reference that contains this id is rewritten to a reference within the document.
    root_id: Option<String>,
    cost: CostModel,
    /// The index of each subschema found so far, by JSON pointer.
    nodes: HashMap<String, usize>,
    open: Vec<(usize, String)>,
    states: usize,
    rewrites: usize,
}

impl Work {
    fn node(&mut self, path: String) -> Result<usize, SchemaError> {
        if let Some(&index) = self.nodes.get(&path) {
            return Ok(index);
        }
        if self.cost.len() == MAX_SUBSCHEMAS {
            return refuse(format!("it has more than {MAX_SUBSCHEMAS} subschemas"));
        }
        let index = self.cost.add_node();
        self.nodes.insert(path.clone(), index);
        self.open.push((index, path));
        Ok(index)
    }

    fn visit(
        &mut self,
        index: usize,
        path: &str,
        schema: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        for keyword in self.id_keywords {
            if let Some(Value::String(id)) = schema.get(*keyword) {
                // The id of the whole schema is already known. Some generators write a subschema's own JSON pointer as
                // its id. Neither id changes how the references below are resolved, so both are removed.
                if !path.is_empty() && !id.starts_with('#') {
                    return refuse(format!("`{keyword}` is only supported at the top level"));
                }
                schema.shift_remove(*keyword);
            }
        }
        for keyword in ["$dynamicRef", "$recursiveRef"] {
            if schema.get(keyword).is_some_and(Value::is_string) {
                return refuse(format!("`{keyword}` is not supported; use `$ref`"));
            }
        }
        // `format` is removed, because a check of it is never exact and services define their own values for it. In
        // drafts before 2019-09, the compiler would check it.
        if schema.get("format").is_some_and(Value::is_string) {
            schema.shift_remove("format");
        }
        // A fractional `multipleOf` is removed, because floating-point arithmetic is not exact: 19.99 would not be a
        // multiple of 0.01.
        if schema
            .get("multipleOf")
            .and_then(Value::as_f64)
            .is_some_and(|divisor| divisor > 0.0 && divisor.fract() != 0.0)
        {
            schema.shift_remove("multipleOf");
        }
        if let Some(Value::String(pattern)) = schema.get("pattern")
            && !self.take_pattern(pattern)?
        {
            schema.shift_remove("pattern");
        }
        if let Some(Value::Object(patterns)) = schema.get("patternProperties") {
            for pattern in patterns.keys() {
                if !self.take_pattern(pattern)? {
                    return refuse(format!(
                        "`patternProperties` has look-around or a back-reference: {:?}",
                        clip(pattern, 200)
                    ));
                }
            }
        }
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            let target = reference::pointer(self.root_id.as_deref(), reference)?;
            let fragment = reference.split_once('#').map_or("", |(_, fragment)| fragment);
            *reference = format!("#{fragment}");
            let to = self.node(target)?;
            self.cost.add_edge(index, Edge::Same, to);
        }
        for (keyword, value) in &*schema {
            for (step, _) in subschemas(keyword, value) {
                let to = self.node(path.to_owned() + &step.pointer(keyword))?;
                self.cost.add_edge(index, edge(keyword, &step), to);
            }
        }
        Ok(())
    }

    /// Adds the cost of a regular expression to the totals and checks the limits. Returns whether the expression can be
    /// checked.
    fn take_pattern(&mut self, pattern: &str) -> Result<bool, SchemaError> {
        let Some(weight) = Some(pattern).filter(|pattern| pattern.len() <= MAX_PATTERN).map(pattern::weigh)
        else {
            return refuse(format!("a regular expression is longer than {MAX_PATTERN} bytes"));
        };
        let Some(weight) = weight else { return Ok(false) };
        self.states = self.states.saturating_add(weight.states);
        self.rewrites = self.rewrites.saturating_add(weight.rewrites);
        if self.states > MAX_STATES || weight.rewrites > MAX_REWRITES || self.rewrites > MAX_ALL_REWRITES {
            return refuse("its regular expressions are too large");
        }
        Ok(true)
    }
}

/// Returns to which part of a value a subschema applies, if the schema that contains the keyword applies to the value.
///
/// The keywords of all drafts are considered, whatever draft the schema uses. As a result, the estimated cost of some
/// schemas is too high, but it is never too low.
fn edge(keyword: &str, step: &Step<'_>) -> Edge {
    match (keyword, step) {
        ("properties", Step::Name(name)) => Edge::Property((*name).to_owned()),
        ("prefixItems" | "items", Step::Position(_)) => Edge::Prefix,
        ("patternProperties", _) => Edge::Pattern,
        ("additionalProperties" | "unevaluatedProperties", _) => Edge::OtherProperty,
        ("propertyNames", _) => Edge::Name,
        ("items" | "additionalItems", _) => Edge::OtherItem,
        ("contains" | "unevaluatedItems", _) => Edge::Item,
        ("contentSchema" | "$defs" | "definitions", _) => Edge::Nowhere,
        _ => Edge::Same,
    }
}
