//! Describes what is wrong with a value. The text is for a model that will correct the value.

use std::fmt::Write;

use boon::{ErrorKind, InstanceToken, ValidationError};
use serde_json::Value;

use crate::text::clip;

const MAX_PROBLEMS: usize = 10;
const MAX_LINE: usize = 600;
const MAX_TEXT: usize = 2_000;
const MAX_ALTERNATIVES: usize = 4;

/// Returns the problems of a value, one per line.
pub(super) fn describe(error: &ValidationError<'_, '_>) -> String {
    let mut found = Vec::new();
    collect(error, &mut found);
    let mut text = String::new();
    let mut listed = 0;
    for problem in found.iter().take(MAX_PROBLEMS) {
        let line = format!("- at {}: {}", place(problem), clip(&sentence(problem), MAX_LINE));
        if listed > 0 && text.len() + line.len() > MAX_TEXT {
            break;
        }
        if listed > 0 {
            text.push('\n');
        }
        text.push_str(&line);
        listed += 1;
    }
    if listed < found.len() {
        let _ = write!(text, "\n- and {} more", found.len() - listed);
    }
    text
}

/// Collects the problems that a model has to correct. Errors that only group other errors are left out.
fn collect<'e, 's, 'v>(error: &'e ValidationError<'s, 'v>, found: &mut Vec<&'e ValidationError<'s, 'v>>) {
    let leads_on = matches!(
        error.kind,
        ErrorKind::Group | ErrorKind::Schema { .. } | ErrorKind::Reference { .. } | ErrorKind::AllOf
    );
    if leads_on && !error.causes.is_empty() {
        for cause in &error.causes {
            collect(cause, found);
        }
    } else {
        found.push(error);
    }
}

/// Returns the JSON pointer to the part of the value that has the problem.
fn place(error: &ValidationError<'_, '_>) -> String {
    let tokens = &error.instance_location.tokens;
    if tokens.is_empty() {
        return "the top level".to_owned();
    }
    let mut pointer = String::new();
    for token in tokens {
        pointer.push('/');
        match token {
            InstanceToken::Prop(name) => pointer.push_str(&name.replace('~', "~0").replace('/', "~1")),
            InstanceToken::Item(position) => pointer.push_str(&position.to_string()),
        }
    }
    clip(&pointer, 200).into_owned()
}

fn sentence(error: &ValidationError<'_, '_>) -> String {
    match &error.kind {
        ErrorKind::Type { got, want } => {
            let want: Vec<_> = want.iter().map(|kind| kind.to_string()).collect();
            format!("expected {}, got {got}", want.join(" or "))
        }
        ErrorKind::Enum { want } => format!("must be one of {}", list(want.iter().map(literal))),
        ErrorKind::Const { want } => format!("must be {}", literal(want)),
        ErrorKind::Required { want } => match want.as_slice() {
            [name] => format!("missing required property {}", quote(name)),
            names => format!("missing required properties {}", list(names.iter().map(|name| quote(name)))),
        },
        ErrorKind::Dependency { prop, missing } | ErrorKind::DependentRequired { prop, missing } => {
            format!(
                "with {}, it must also have {}",
                quote(prop),
                list(missing.iter().map(|name| quote(name)))
            )
        }
        ErrorKind::AdditionalProperties { got } => {
            format!("must not have {}", list(got.iter().map(|name| quote(name))))
        }
        ErrorKind::PropertyName { prop } => {
            format!("can't have a property named {}: {}", quote(prop), causes(error))
        }
        ErrorKind::FalseSchema => "must be absent".to_owned(),
        ErrorKind::MinProperties { got, want } => {
            format!("must have at least {want} properties, has {got}")
        }
        ErrorKind::MaxProperties { got, want } => {
            format!("must have at most {want} properties, has {got}")
        }
        ErrorKind::MinItems { got, want } => format!("must have at least {want} items, has {got}"),
        ErrorKind::MaxItems { got, want } => format!("must have at most {want} items, has {got}"),
        ErrorKind::AdditionalItems { got } => format!("has {got} items too many at the end"),
        ErrorKind::UniqueItems { got: [first, second] } => {
            format!("items must differ; those at {first} and {second} are equal")
        }
        ErrorKind::Contains => "has no item of the required kind".to_owned(),
        ErrorKind::MinContains { got, want } => {
            format!("must have at least {want} items of a certain kind, has {}", got.len())
        }
        ErrorKind::MaxContains { got, want } => {
            format!("must have at most {want} items of a certain kind, has {}", got.len())
        }
        ErrorKind::MinLength { got, want } => {
            format!("must have at least {want} characters, has {got}")
        }
        ErrorKind::MaxLength { got, want } => {
            format!("must have at most {want} characters, has {got}")
        }
        ErrorKind::Pattern { got, want } => {
            format!("{} does not match the pattern {want}", quote(got))
        }
        ErrorKind::Minimum { got, want } => format!("must be at least {want}, got {got}"),
        ErrorKind::Maximum { got, want } => format!("must be at most {want}, got {got}"),
        ErrorKind::ExclusiveMinimum { got, want } => format!("must be more than {want}, got {got}"),
        ErrorKind::ExclusiveMaximum { got, want } => format!("must be less than {want}, got {got}"),
        ErrorKind::MultipleOf { got, want } => format!("must be a multiple of {want}, got {got}"),
        ErrorKind::Not => "has a form that it must not have".to_owned(),
        ErrorKind::OneOf(Some(_)) => "matches two of the forms that exclude each other".to_owned(),
        ErrorKind::AnyOf | ErrorKind::OneOf(None) => alternatives(error),
        other => other.to_string(),
    }
}

/// Describes why the value matches none of several alternatives. Shows only the problems of the alternatives that the
/// value was most likely intended to match.
fn alternatives(error: &ValidationError<'_, '_>) -> String {
    let depth = error.instance_location.tokens.len();
    let forms: Vec<Vec<_>> = error
        .causes
        .iter()
        .map(|cause| {
            let mut found = Vec::new();
            collect(cause, &mut found);
            found
        })
        .collect();
    let (meant, other): (Vec<_>, Vec<_>) =
        forms.iter().partition(|form| !form.iter().any(|problem| is_other_form(problem, depth)));
    let candidates = if meant.is_empty() { other } else { meant };
    let mut words: Vec<String> = candidates
        .iter()
        .take(MAX_ALTERNATIVES)
        .map(|form| {
            let problems: Vec<_> = form.iter().take(3).map(|problem| relative(problem, depth)).collect();
            problems.join(", ")
        })
        .collect();
    words.dedup();
    match words.as_slice() {
        [] => "has none of the allowed forms".to_owned(),
        [only] => only.clone(),
        several => format!("has none of the allowed forms: either {}", several.join("; or ")),
    }
}

/// Returns whether a problem shows that the value was meant for another alternative, because its tag or type differs.
fn is_other_form(problem: &ValidationError<'_, '_>, depth: usize) -> bool {
    let below = problem.instance_location.tokens.len().saturating_sub(depth);
    match problem.kind {
        ErrorKind::Const { .. } | ErrorKind::Enum { .. } => below <= 1,
        ErrorKind::Type { .. } => below == 0,
        _ => false,
    }
}

fn relative(problem: &ValidationError<'_, '_>, depth: usize) -> String {
    let text = sentence(problem);
    if problem.instance_location.tokens.len() > depth {
        format!("at {}: {}", place(problem), clip(&text, MAX_LINE / 2))
    } else {
        clip(&text, MAX_LINE / 2).into_owned()
    }
}

fn causes(error: &ValidationError<'_, '_>) -> String {
    let mut found = Vec::new();
    for cause in &error.causes {
        collect(cause, &mut found);
    }
    found.iter().take(3).map(|cause| sentence(cause)).collect::<Vec<_>>().join(", ")
}

fn list(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 20;
    let more = items.len().saturating_sub(SHOWN);
    let mut text = items.take(SHOWN).collect::<Vec<_>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn quote(text: &str) -> String {
    literal(&Value::from(&*clip(text, 100)))
}

/// Returns the value's JSON text, clipped to a maximum length.
fn literal(value: &Value) -> String {
    clip(&value.to_string(), 120).into_owned()
}
