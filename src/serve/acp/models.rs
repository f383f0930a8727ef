//! The option with which the client's user chooses the model of a session.

use agent_client_protocol_schema::v1::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption,
};

/// The id of the option.
pub(super) const ID: &str = "model";

/// Returns the option with the offered models, or `None` if no models are offered. The model in use is always among
/// them.
pub(super) fn options(models: &[String], used: &str) -> Option<Vec<SessionConfigOption>> {
    if models.is_empty() {
        return None;
    }
    let other = (!models.iter().any(|model| model == used)).then_some(used);
    let offered = other.into_iter().chain(models.iter().map(String::as_str));
    let offered: Vec<_> =
        offered.map(|model| SessionConfigSelectOption::new(model.to_owned(), model)).collect();
    let option = SessionConfigOption::select(ID, "Model", used.to_owned(), offered);
    Some(vec![option.category(SessionConfigOptionCategory::Model)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn used_model_is_always_one_of_the_options() {
        let models = ["a:1".to_owned(), "b:2".to_owned()];
        let values = |used| {
            let option = json!(options(&models, used).unwrap())[0].clone();
            assert_eq!(option["currentValue"], used);
            let values = option["options"].as_array().unwrap().iter().map(|option| option["value"].clone());
            values.collect::<Vec<_>>()
        };
        assert_eq!(values("b:2"), ["a:1", "b:2"]);
        assert_eq!(values("c:3"), ["c:3", "a:1", "b:2"]);
        assert!(options(&[], "a:1").is_none());
    }
}
