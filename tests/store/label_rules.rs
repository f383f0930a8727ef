//! The rules for labels and filters.

use omni_agent::{
    ErrorKind,
    store::{Filter, Labels},
};

#[test]
fn labels_within_the_limits_are_accepted() {
    let name = "a-z_0.9".to_owned() + &"x".repeat(25);
    let value = "é".repeat(64);
    let labels = Labels::new([(name.as_str(), value.as_str())]).unwrap();
    assert_eq!(labels.get(&name), Some(value.as_str()));
    let json = serde_json::to_string(&labels).unwrap();
    assert_eq!(serde_json::from_str::<Labels>(&json).unwrap(), labels);
    assert_eq!(serde_json::to_string(&Labels::default()).unwrap(), "{}");
    // Labels of the crate itself do not count towards the maximum of eight labels.
    let many = (0..8).map(|number| format!("n{number}")).chain(["omni.parent".to_owned()]);
    assert_eq!(Labels::new(many.map(|name| (name, "v"))).unwrap().len(), 9);
}

#[test]
fn invalid_labels_are_rejected_with_the_reason() {
    for name in ["", "Tenant", "a b", "é", "a\u{0}", &"x".repeat(33)] {
        let error = Labels::new([(name, "v")]).unwrap_err();
        assert!(error.to_string().contains("is not a valid name of a label"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("1 to 32"), "{error}");
    }
    for value in ["", "a\nb", "a\u{0}", "\u{7f}", &"x".repeat(129), &"é".repeat(65)] {
        let error = Labels::new([("tenant", value)]).unwrap_err();
        assert!(error.to_string().starts_with("the value of label \"tenant\" is not valid"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
    let nine = (0..9).map(|number| (format!("n{number}"), "v"));
    let text = "a conversation can have 8 labels; these are 9";
    let error = Labels::new(nine).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Config, text));
    let error = serde_json::from_str::<Labels>(r#"{"Tenant": "a"}"#).unwrap_err().to_string();
    assert!(error.contains("is not a valid name of a label"), "{error}");
}

#[test]
fn filter_requires_all_labels_and_the_absence_of_others() {
    let labels = Labels::new([("tenant", "acme"), ("user", "ann")]).unwrap();
    let acme = Filter::with(Labels::new([("tenant", "acme")]).unwrap());
    assert!(acme.matches(&labels) && Filter::default().matches(&labels) && Filter::default().is_empty());
    assert!(!acme.clone().without("user").matches(&labels));
    assert!(acme.without("kind").matches(&labels));
    let both = Filter::with(Labels::new([("tenant", "acme"), ("user", "ben")]).unwrap());
    assert!(!both.matches(&labels) && !both.matches(&Labels::default()));
}
