//! What the simulator found, as short schedules.
