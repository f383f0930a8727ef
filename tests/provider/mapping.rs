//! `docs/services.md` says what each service makes of each option. It is made from what the endpoints send, and held
//! to it: after a change, `OMNI_BLESS=1 cargo test --test provider mapping` writes it anew.

mod change;
mod page;
mod rows;

use std::{env, fs, path::Path};

#[test]
fn table_of_services_and_options_is_what_the_endpoints_send() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/services.md");
    let made = page::page();
    if env::var_os("OMNI_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "{} is not what the endpoints send; write it anew with OMNI_BLESS=1. First: {differs:?}",
        file.display()
    );
}
