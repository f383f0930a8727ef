//! The table of scenarios and the formats in which they work.

mod conversation;
mod failures;
mod options;
mod tools;

use std::{fmt::Write as _, io::Write as _};

use crate::rig::{Cell, Format, Rig, within_a_minute};

/// A scenario, and the formats in which it does not work.
struct Row {
    name: &'static str,
    except: &'static [(Format, Cell, &'static str)],
}

impl Row {
    fn cell(&self, format: Format) -> (Cell, &'static str) {
        let except = self.except.iter().find(|(other, ..)| *other == format);
        except.map_or((Cell::Works, "works"), |(_, cell, why)| (*cell, why))
    }
}

/// Defines a test for each scenario. The test runs the scenario in each format and compares the results with the table.
macro_rules! scenarios {
    ($($module:ident::$name:ident $({$($format:ident: $cell:ident, $why:literal;)+})?)+) => {
        const TABLE: &[Row] = &[$(Row {
            name: stringify!($name),
            except: &[$($((Format::$format, Cell::$cell, $why)),+)?],
        }),+];

        $(
            #[tokio::test]
            async fn $name() {
                let row = TABLE.iter().find(|row| row.name == stringify!($name)).unwrap();
                for format in Format::ALL {
                    let mut rig = Rig::new(format).await;
                    let cell = within_a_minute($module::$name(&mut rig)).await;
                    assert_eq!(cell, row.cell(format).0, "{format:?}");
                    assert_eq!(rig.service.refused(), Vec::<String>::new(), "{format:?}");
                }
            }
        )+
    };
}

scenarios! {
    conversation::plain_text
    conversation::every_transport_habit
    conversation::characters_split_between_chunks
    conversation::several_turns
    conversation::system_prompt
    conversation::thinking_comes_back_over_two_turns
    conversation::opaque_items_come_back {
        Chat: Absent, "the service does not report its own actions";
        Ollama: Absent, "the server performs no actions itself";
    }
    conversation::interrupted_answer_then_more
    conversation::interrupted_tools_then_more
    tools::one_tool
    tools::parallel_tools
    tools::tool_error
    tools::tool_result_with_image
    tools::unknown_tool
    tools::made_up_names
    tools::malformed_tool_input {
        Gemini: Unsupported, "inputs come parsed; the service fails with MALFORMED_FUNCTION_CALL";
        Ollama: Unsupported, "inputs come parsed; the server fails";
    }
    tools::tool_uses_of_a_cut_answer
    tools::open_tool_answered_by_the_application
    tools::tool_choice_none
    tools::tool_choice_required { Ollama: Unsupported, "a tool can't be forced"; }
    tools::tool_choice_of_one { Ollama: Unsupported, "a tool can't be forced"; }
    options::image
    options::image_by_url { Ollama: Unsupported, "images are sent only as base64"; }
    options::pdf { Ollama: Unsupported, "images are the only files"; }
    options::output_schema
    options::stop_sequences {
        Chat: Unsupported, "OpenAI's reasoning models accept none";
        Responses: Unsupported, "the format has none";
    }
    options::limit_of_tokens
    options::refusal { Ollama: Absent, "the format can't express it"; }
    options::usage
    options::cache_hint { Gemini: Unsupported, "the service has no setting for the duration"; }
    options::metadata {
        Chat: Unsupported, "accepted only for stored answers";
        Gemini: Unsupported, "not supported";
        Ollama: Unsupported, "not supported";
    }
    failures::error_before_the_stream
    failures::rate_limit_then_answer
    failures::error_inside_the_stream
    failures::end_missing
    failures::end_twice
    failures::silence
    failures::cancel_closes_the_connection
}

#[test]
fn table() {
    let mut text = format!("{:45}", "");
    let width = 12;
    for format in Format::ALL {
        write!(text, "{:width$}", format!("{format:?}")).unwrap();
    }
    let mut notes = String::new();
    for row in TABLE {
        write!(text, "\n{:45}", row.name).unwrap();
        for format in Format::ALL {
            let (cell, why) = row.cell(format);
            let word = match cell {
                Cell::Works => "yes",
                Cell::Unsupported => "unsupported",
                Cell::Absent => "absent",
            };
            write!(text, "{word:width$}").unwrap();
            if cell != Cell::Works {
                assert!(!why.is_empty());
                writeln!(notes, "{} on {format:?}: {word}: {why}", row.name).unwrap();
            }
        }
    }
    // The lints reserve the print macros for debugging, so the table is written directly to the standard output.
    std::io::stdout().write_all(format!("{text}\n\n{notes}").as_bytes()).unwrap();
}
