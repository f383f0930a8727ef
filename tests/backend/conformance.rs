//! The conformance suite passes on a correct backend, and detects each violation of the contract.

use std::{panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use futures_util::FutureExt;
use omni_agent::{
    message::{Message, ToolResult, ToolUse},
    provider::{
        StopReason,
        custom::{Backend, BackendError, BackendEvent, TurnPrompt, TurnResult, conformance},
    },
    testing::ConformanceReport,
};
use serde_json::json;

use crate::scripted::{Act, Fault, ScriptedBackend, Step, Turn};

struct Subject(ScriptedBackend);

fn prompt(text: &str) -> TurnPrompt {
    TurnPrompt::new([Message::user(text)])
}

#[async_trait]
impl conformance::BackendUnderTest for Subject {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    fn long_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Go on for ever"))
    }

    fn tool_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Look"))
    }

    fn asking_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Delete"))
    }

    fn remember_prompt(&self, word: &str) -> Option<TurnPrompt> {
        Some(prompt(&format!("The word is {word}")))
    }

    fn recall_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Which word?"))
    }

    fn running(&self) -> Option<usize> {
        Some(self.0.running())
    }

    async fn all_ended(&self) -> bool {
        self.0.until_none_runs().await;
        true
    }
}

fn tool() -> ToolUse {
    ToolUse::new("t1", "shell", json!({}))
}

fn used() -> BackendEvent {
    BackendEvent::ToolUse(tool())
}

fn result() -> BackendEvent {
    BackendEvent::ToolResult(ToolResult::ok(&tool(), "done"))
}

fn well(prompt: &str) -> Option<Turn> {
    match prompt {
        "Go on for ever" => Some(Turn::new().text("And on").step(Step::Hang)),
        "Look" => Some(Turn::new().event(used()).event(result()).text("Seen.").stop()),
        "Delete" => {
            Some(Turn::new().event(used()).step(Step::Ask(tool(), Vec::new())).event(result()).stop())
        }
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn suite_passes_on_a_backend_that_keeps_the_contract() {
    let report = conformance::check(async || Subject(ScriptedBackend::whole(well, None))).await;
    assert_eq!((report.passed.len(), report.skipped.len()), (18, 0), "{report:?}");
}

/// A test subject that provides only the backend.
struct Plain(ScriptedBackend);

impl conformance::BackendUnderTest for Plain {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn suite_skips_checks_that_the_subject_does_not_support() {
    let report = conformance::check(async || Plain(ScriptedBackend::new([]))).await;
    let skipped = [
        "permission_allowed_continues_the_turn",
        "resume_continues_the_conversation",
        "terminate_leaves_nothing_running",
    ];
    assert!(skipped.iter().all(|check| report.skipped.contains(check)), "{report:?}");
    assert!(report.passed.contains(&"prompt_after_terminate_is_an_error"), "{report:?}");
}

/// Runs the suite on a faulty backend, and asserts that the check with this name fails.
async fn caught(by: &str, make: impl Fn() -> ScriptedBackend) {
    let outcome: Result<ConformanceReport, _> =
        AssertUnwindSafe(conformance::check(async || Subject(make()))).catch_unwind().await;
    let words = *outcome.expect_err("the suite passed").downcast::<String>().unwrap();
    let failed = words.split_once(": ").unwrap().1;
    assert!(failed.split(", ").any(|name| name == by), "{by} is not among {failed}");
}

macro_rules! breaches {
    ($($test:ident: $check:literal, $make:expr;)+) => {$(
        #[tokio::test(start_paused = true)]
        async fn $test() {
            caught($check, || $make).await;
        }
    )+};
}

/// Creates a backend that runs `$turn` for the suite's prompt that requires a tool, and correct turns for all other
/// prompts.
macro_rules! looking {
    ($turn:expr) => {
        ScriptedBackend::whole(|prompt| if prompt == "Look" { Some($turn) } else { well(prompt) }, None)
    };
}

/// Creates a backend that runs `$turn` for the suite's plain prompt, and correct turns for all other prompts.
macro_rules! saying {
    ($turn:expr) => {
        ScriptedBackend::whole(|prompt| if prompt == "Say hello." { Some($turn) } else { well(prompt) }, None)
    };
}

fn end() -> BackendEvent {
    BackendEvent::Result(TurnResult::new(StopReason::Stop))
}

breaches! {
    suite_catches_a_turn_without_an_end: "turn_ends_in_one_terminal_event", saying!(Turn::new().text("Hello"));
    suite_catches_a_second_end: "turn_ends_in_one_terminal_event", saying!(Turn::new().event(end()).event(end()));
    suite_catches_an_error_after_the_end: "turn_ends_in_one_terminal_event",
        saying!(Turn::new().event(end()).event(BackendEvent::Error(BackendError::Failed("late".into()))));
    suite_catches_text_after_the_end: "turn_ends_in_one_terminal_event", saying!(Turn::new().event(end()).text("More"));
    suite_catches_a_stream_that_stays_open: "turn_ends_in_one_terminal_event",
        saying!(Turn::new().event(end()).step(Step::Hang));
    suite_catches_a_panic_in_the_stream: "turn_ends_in_one_terminal_event", saying!(Turn::new().step(Step::Panic));
    suite_catches_silence: "turn_ends_in_one_terminal_event", saying!(Turn::new().text("So").step(Step::Hang));
    suite_catches_a_result_without_its_use: "tool_results_follow_their_uses", looking!(Turn::new().event(result()).stop());
    suite_catches_a_repeated_tool_use: "tool_results_follow_their_uses",
        looking!(Turn::new().event(used()).event(used()).stop());
    suite_catches_a_second_result: "tool_results_follow_their_uses",
        looking!(Turn::new().event(used()).event(result()).event(result()).stop());
    suite_catches_an_update_of_an_unknown_tool_use: "tool_results_follow_their_uses",
        looking!(Turn::new().event(used()).event(BackendEvent::ToolUpdate { id: "t2".into(), data: json!(1) }).stop());
    suite_catches_a_panic_in_start: "turn_ends_in_one_terminal_event",
        ScriptedBackend::whole(well, None).act("start", Act::Panic);
    suite_catches_a_start_that_hangs: "turn_ends_in_one_terminal_event",
        ScriptedBackend::whole(well, None).act("start", Act::Hang);
    suite_catches_an_update_that_fails: "turns_follow_one_another",
        ScriptedBackend::whole(well, None).act("update", Act::Fail(BackendError::Failed("no".into())));
    suite_catches_a_cancel_that_is_ignored: "cancel_ends_the_turn_and_keeps_the_session",
        ScriptedBackend::whole(well, None).act("cancel", Act::Hang);
    suite_catches_a_cancel_that_needs_a_turn: "cancel_without_a_turn_succeeds",
        ScriptedBackend::whole(well, None).act("cancel", Act::Fail(BackendError::Invalid("no turn".into())));
    suite_catches_a_cancel_that_keeps_a_question_open: "turn_that_asks_can_be_cancelled",
        ScriptedBackend::whole(well, None).act("cancel", Act::Hang);
    suite_catches_a_terminate_that_hangs: "prompt_after_terminate_is_an_error",
        ScriptedBackend::whole(well, None).act("terminate", Act::Hang);
    suite_catches_a_stream_that_outlives_its_session: "terminate_during_a_turn_ends_its_stream",
        ScriptedBackend::whole(well, Some(Fault::StreamsOn));
    suite_catches_answers_after_terminate: "prompt_after_terminate_is_an_error",
        ScriptedBackend::whole(well, Some(Fault::AnswersOn));
    suite_catches_processes_left_by_terminate: "terminate_leaves_nothing_running",
        ScriptedBackend::whole(well, Some(Fault::RunsOn));
    suite_catches_processes_left_by_a_drop: "dropped_session_leaves_nothing_running",
        ScriptedBackend::whole(well, Some(Fault::RunsOn));
    suite_catches_a_session_that_forgets: "session_remembers", ScriptedBackend::whole(well, Some(Fault::Forgets));
    suite_catches_sessions_that_share_prompts: "parallel_sessions_are_independent", ScriptedBackend::whole(well, Some(Fault::MixesSessions));
    suite_catches_a_resume_as_a_new_session: "resume_continues_the_conversation",
        ScriptedBackend::whole(well, Some(Fault::ResumesAnew));
    suite_catches_a_resume_of_an_unknown_session: "resume_of_an_unknown_session_is_refused",
        ScriptedBackend::whole(well, Some(Fault::ResumesAnything));
    suite_catches_a_fork_at_the_wrong_position: "fork_starts_at_its_position",
        ScriptedBackend::whole(well, Some(Fault::ForksAtTheEnd));
    suite_catches_a_fork_that_returns_the_same_session: "fork_starts_at_its_position",
        ScriptedBackend::whole(well, Some(Fault::ForksNothing));
}
