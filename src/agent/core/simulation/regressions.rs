//! Schedules that once broke the contract, by name.
