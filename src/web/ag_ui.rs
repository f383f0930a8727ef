//! The streams of AG-UI. Pure.
