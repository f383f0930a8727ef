//! The UI message stream of the AI SDK. Pure.
