//! Finds the session option that selects the agent's model. Performs no I/O.

use agent_client_protocol_schema::v1::{
    SessionConfigId, SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory,
    SessionConfigSelectOptions, SessionConfigValueId,
};

/// How a model is selected in a session.
#[derive(Debug, PartialEq)]
pub(super) enum Choice {
    /// The model is already selected.
    Chosen,
    Choose {
        option: SessionConfigId,
        value: SessionConfigValueId,
    },
    /// The agent offers no choice of models.
    None,
    /// The agent does not offer the model. The text lists the models that it offers.
    Unknown(String),
}

pub(super) fn choice(options: &[SessionConfigOption], model: &str) -> Choice {
    let models = options.iter().find_map(|option| match &option.kind {
        SessionConfigKind::Select(select) if option.category == Some(SessionConfigOptionCategory::Model) => {
            Some((option, select))
        }
        _ => None,
    });
    let Some((option, select)) = models else {
        return Choice::None;
    };
    let values: Vec<_> = match &select.options {
        SessionConfigSelectOptions::Ungrouped(values) => values.iter().collect(),
        SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| &group.options).collect()
        }
        _ => Vec::new(),
    };
    if &*select.current_value.0 == model {
        return Choice::Chosen;
    }
    let Some(value) = values.iter().find(|value| &*value.value.0 == model || value.name == model) else {
        let ids: Vec<&str> = values.iter().map(|value| &*value.value.0).collect();
        return Choice::Unknown(ids.join(", "));
    };
    Choice::Choose { option: option.id.clone(), value: value.value.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn model_is_chosen_from_the_offered_models() {
        let options: Vec<SessionConfigOption> = serde_json::from_value(json!([
            { "id": "mode", "name": "Mode", "category": "mode", "type": "select", "currentValue": "small",
              "options": [{ "value": "small", "name": "Small" }] },
            { "id": "llm", "name": "Model", "category": "model", "type": "select", "currentValue": "a",
              "options": [{ "group": "g", "name": "G", "options": [
                  { "value": "a", "name": "A" }, { "value": "b", "name": "Big" }] }] },
        ]))
        .unwrap();
        assert_eq!(choice(&options, "a"), Choice::Chosen);
        let big = || Choice::Choose { option: "llm".into(), value: "b".into() };
        assert_eq!((choice(&options, "b"), choice(&options, "Big")), (big(), big()));
        assert_eq!(choice(&options, "small"), Choice::Unknown("a, b".to_owned()));
        assert_eq!(choice(&options[..1], "a"), Choice::None);
    }
}
