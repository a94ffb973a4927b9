//! Schedules of functions: set by people, fired by whichever scheduler comes first.

mod firing;
mod operating;

pub use self::{
    firing::{DueSchedule, Fire, due, due_on, fire, fire_waiting, waiting_tenants},
    operating::{
        FiringState, INPUT_TOO_LARGE, NewSchedule, ScheduleState, find, firings, now, page, put, remove,
        switch,
    },
};
