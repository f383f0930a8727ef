//! Compares `docs/services.md` with the requests that the endpoints really send. The file shows what each service
//! receives for each option. After a change, `OMNI_BLESS=1 cargo test --test provider mapping` rewrites the file.

mod change;
mod page;
mod rows;

use std::{env, fs, path::Path};

#[test]
fn services_page_shows_what_the_endpoints_send() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/services.md");
    let made = page::page();
    if env::var_os("OMNI_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let kept = fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "{} differs from what the endpoints send; rewrite it with OMNI_BLESS=1. First difference: {differs:?}",
        file.display()
    );
}
