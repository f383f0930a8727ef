//! Prepares a schema for the compiler. This finds the schema's subschemas, removes keywords that can't be checked
//! exactly, and refuses a schema if the compiler or the checker could take too long.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    SchemaError,
    cost::{SchemaCostModel, SubschemaValuePart},
    walk::{PlaceInKeyword, id_keywords, pointer, root_id, subschemas},
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

pub(super) struct CompilableSchema {
    pub(super) document: Value,
    pub(super) cost: SchemaCostModel,
}

/// Prepares a schema. Its depth must already be checked.
pub(super) fn prepare(schema: &Value) -> Result<CompilableSchema, SchemaError> {
    let mut document = schema.clone();
    let root_id = root_id(&document).map(ToOwned::to_owned);
    let mut work =
        SchemaPreparer { id_keywords: id_keywords(&document), root_id, ..SchemaPreparer::default() };
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
    Ok(CompilableSchema { document, cost })
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, SchemaError> {
    Err(SchemaError(reason.into()))
}

#[derive(Default)]
struct SchemaPreparer {
    id_keywords: &'static [&'static str],
    /// The schema's id. A reference that contains this id is rewritten to a reference within the document.
    root_id: Option<String>,
    cost: SchemaCostModel,
    /// The index of each subschema found so far, by JSON pointer.
    nodes: HashMap<String, usize>,
    open: Vec<(usize, String)>,
    states: usize,
    rewrites: usize,
}

impl SchemaPreparer {
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
        if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
            for (pattern, subschema) in std::mem::take(patterns) {
                let mut pattern = with_plain_brackets(&pattern);
                if !self.take_pattern(&pattern)? {
                    return refuse(format!(
                        "`patternProperties` has look-around or a back-reference: {:?}",
                        clip(&pattern, 200)
                    ));
                }
                while patterns.contains_key(&pattern) {
                    // Another pattern has the same form. An empty group keeps them apart.
                    pattern.insert_str(0, "(?:)");
                }
                patterns.insert(pattern, subschema);
            }
        }
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            let target = pointer(self.root_id.as_deref(), reference)?;
            let fragment = reference.split_once('#').map_or("", |(_, fragment)| fragment);
            *reference = format!("#{fragment}");
            let to = self.node(target)?;
            self.cost.add_edge(index, SubschemaValuePart::Same, to);
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
        let Some(weight) = Some(pattern).filter(|pattern| pattern.len() <= MAX_PATTERN).map(weigh) else {
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
fn edge(keyword: &str, step: &PlaceInKeyword<'_>) -> SubschemaValuePart {
    match (keyword, step) {
        ("properties", PlaceInKeyword::Name(name)) => SubschemaValuePart::Property((*name).to_owned()),
        ("prefixItems" | "items", PlaceInKeyword::Position(_)) => SubschemaValuePart::Prefix,
        ("patternProperties", _) => SubschemaValuePart::Pattern,
        ("additionalProperties" | "unevaluatedProperties", _) => SubschemaValuePart::OtherProperty,
        ("propertyNames", _) => SubschemaValuePart::Name,
        ("items" | "additionalItems", _) => SubschemaValuePart::OtherItem,
        ("contains" | "unevaluatedItems", _) => SubschemaValuePart::Item,
        ("contentSchema" | "$defs" | "definitions", _) => SubschemaValuePart::Nowhere,
        _ => SubschemaValuePart::Same,
    }
}

/// The cost of a regular expression.
struct RegexCost {
    /// The approximate number of states that the regular expression engine will need.
    states: usize,
    /// The number of times that `boon` will parse the pattern again to rewrite a class such as `\d`.
    rewrites: usize,
}

/// Estimates the cost of a pattern. Returns `None` if the pattern uses look-around or back-references, which the engine
/// does not support, or a class that the engine reads in another way.
///
/// The estimate is rough. If it is too low, the engine's own generous size limit still applies.
fn weigh(pattern: &str) -> Option<RegexCost> {
    let mut rewrites = 0;
    // For each open group, `groups` contains the number of states of the finished atoms, with the innermost group last.
    // `atom` is the number of states of the atom that a quantifier would repeat.
    let mut groups = vec![0_usize];
    let mut atom = 0_usize;
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        let next = match char {
            '\\' => match rest.next() {
                Some('1'..='9' | 'k') => return None,
                Some('p' | 'P') => {
                    skip_braces(&mut rest);
                    200
                }
                Some('u' | 'U' | 'x') => {
                    skip_braces(&mut rest);
                    4
                }
                Some('d' | 'D' | 'w' | 'W' | 's' | 'S') => {
                    rewrites += 1;
                    10
                }
                _ => 2,
            },
            '[' => class(&mut rest, &mut rewrites)?,
            '(' => {
                if ["?=", "?!", "?<=", "?<!"].iter().any(|look| rest.as_str().starts_with(look)) {
                    return None;
                }
                close_atom(&mut groups, &mut atom);
                groups.push(0);
                continue;
            }
            ')' if groups.len() > 1 => {
                close_atom(&mut groups, &mut atom);
                atom = groups.pop().unwrap_or_default().max(1);
                continue;
            }
            '{' => {
                if let Some((bounds, after)) = rest.as_str().split_once('}')
                    && let Some(times) = repetitions(bounds)
                {
                    atom = atom.saturating_mul(times.max(1));
                    rest = after.chars();
                    continue;
                }
                1
            }
            '.' => 4,
            _ => 1,
        };
        close_atom(&mut groups, &mut atom);
        atom = next;
    }
    let states = groups.into_iter().fold(atom, usize::saturating_add);
    Some(RegexCost { states, rewrites })
}

/// Returns a pattern with a backslash before each `[` in a class. In JSON Schema, such a `[` is a plain character, and for
/// the engine it would begin a nested class.
fn with_plain_brackets(pattern: &str) -> String {
    let (mut plain, mut is_in_class) = (String::with_capacity(pattern.len()), false);
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        match char {
            '[' if is_in_class => plain.push('\\'),
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            _ => {}
        }
        plain.push(char);
        if char == '\\' {
            plain.extend(rest.next());
        }
    }
    plain
}

fn close_atom(groups: &mut [usize], atom: &mut usize) {
    if let Some(group) = groups.last_mut() {
        *group = group.saturating_add(std::mem::take(atom));
    }
}

/// Skips the braces of an escape such as `\p{Greek}`.
fn skip_braces(rest: &mut std::str::Chars<'_>) {
    if let Some((_, after)) = rest.as_str().strip_prefix('{').and_then(|braced| braced.split_once('}')) {
        *rest = after.chars();
    }
}

/// Reads the rest of a character class after its opening bracket. Returns the number of states of the class. Returns `None`
/// if the class contains a `[`: in JSON Schema this is a plain character, and for the engine it begins a nested class.
fn class(rest: &mut std::str::Chars<'_>, rewrites: &mut usize) -> Option<usize> {
    let mut states = 4_usize;
    while let Some(char) = rest.next() {
        match char {
            '\\' => match rest.next() {
                Some('p' | 'P') => states += 200,
                Some('d' | 'D' | 'w' | 'W' | 's' | 'S') => {
                    *rewrites += 1;
                    states += 10;
                }
                _ => states += 1,
            },
            '[' => return None,
            ']' => break,
            _ => states += 1,
        }
    }
    Some(states)
}

/// Returns the greatest number in the bounds `n`, `n,` or `n,m` of a repetition. Returns `None` if the text has another
/// form.
fn repetitions(bounds: &str) -> Option<usize> {
    let (least, most) = bounds.split_once(',').unwrap_or((bounds, ""));
    let least: usize = least.trim().parse().ok()?;
    if most.trim().is_empty() { Some(least) } else { most.trim().parse().ok() }
}
