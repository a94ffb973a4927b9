//! The send protocol as a model, and a search through every state it can reach.
//!
//! ```text
//! claim ──▶ reserve ──COMMIT seen──▶ call ──answer──▶ settle ──▶ complete
//!              │                       │
//!              └─ crash, stale lock ───┴─ no answer: the row stays `queued`, in doubt, and is never called again
//!                                                      │
//!                      a receipt, at any time: `sent` ─┴─ no trace of it, after the quiet time: `failed`
//! ```
//!
//! One job, one or two items, two or three workers. Commits and requests may be late, acknowledgements and answers may
//! get lost, processes die and locks of live workers expire, in every order. `protocol.rs` has the steps, `database.rs`
//! the transactions they consist of, `properties.rs` the properties, and `flaws.rs` the flaws that show that the
//! properties detect mistakes.
//!
//! Not in the model: providers that recognise a repeated key, people who decide without evidence, workers that
//! stop gracefully, and a database that loses committed transactions.

mod actions;
mod database;
mod flaws;
mod properties;
mod protocol;
mod state;

use std::collections::{BTreeSet, HashMap};

use stateright::{Checker, HasDiscoveries, Model, Path};

use actions::Action;
use flaws::{Flaw, SafeVariant};
use properties::{ALL_SETTLED, DEAD_HAS_A_REASON, FAILED_HAS_NONE, NOTHING_LOST, ONE_ACT, TERMINAL_STAYS};
use protocol::Protocol;
use state::{FaultBudget, State};

const ONE_ITEM: Protocol = Protocol {
    workers: 2,
    items: 1,
    window: 1,
    attempts: 3,
    faults: FaultBudget { crashes: 2, stalls: 1, lost_acks: 1 },
    flaw: None,
    variant: None,
};

/// Large enough for every flaw, and small enough to search it many times.
const SMALL: Protocol = Protocol { attempts: 2, ..ONE_ITEM };

/// The property that each flaw violates.
const FLAWS: &[(Flaw, &str)] = &[
    (Flaw::ReservedBeforeCommit, ONE_ACT),
    (Flaw::NoUniqueKey, ONE_ACT),
    (Flaw::ReservedAfterCall, ONE_ACT),
    (Flaw::TimeoutMeansRejected, FAILED_HAS_NONE),
    (Flaw::TimeoutMeansNotSent, ONE_ACT),
    (Flaw::StaleReservationsTakenOver, ONE_ACT),
    (Flaw::NoFencing, TERMINAL_STAYS),
    (Flaw::NotFoundBeforeQuiet, FAILED_HAS_NONE),
    (Flaw::NotFoundAskedBeforeQuiet, FAILED_HAS_NONE),
    (Flaw::OldReservationCalled, FAILED_HAS_NONE),
    (Flaw::DeadJobLeavesNoRows, NOTHING_LOST),
    (Flaw::DeadWithoutLooking, DEAD_HAS_A_REASON),
    (Flaw::QueuedRowsNotMarked, NOTHING_LOST),
    (Flaw::HeartbeatsByName, ALL_SETTLED),
];

#[test]
fn an_item_is_sent_once_and_never_lost() {
    check(ONE_ITEM);
}

#[test]
fn items_reserved_together_do_not_harm_each_other() {
    let faults = FaultBudget { crashes: 1, stalls: 1, lost_acks: 0 };
    check(Protocol { items: 2, window: 2, faults, ..SMALL });
}

#[test]
fn items_reserved_one_by_one_do_not_harm_each_other() {
    check(Protocol { items: 2, faults: FaultBudget { crashes: 1, stalls: 1, lost_acks: 0 }, ..SMALL });
}

#[test]
fn workers_that_lost_their_locks_do_not_harm_the_next() {
    check(Protocol { workers: 3, faults: FaultBudget { crashes: 0, stalls: 3, lost_acks: 0 }, ..ONE_ITEM });
}

#[test]
fn without_any_lock_the_key_is_enough() {
    check(Protocol { variant: Some(SafeVariant::NoLocks), ..SMALL });
}

#[test]
fn a_worker_may_adopt_its_own_unacknowledged_row() {
    check(Protocol { variant: Some(SafeVariant::OwnRowAdopted), ..SMALL });
}

/// Together with the property about states without a next step, this means that every item becomes terminal.
#[test]
fn every_sequence_of_steps_ends() {
    let mut known = HashMap::new();
    for state in SMALL.init_states() {
        let steps = steps_to_the_end(SMALL, &state, &mut known).expect("no state can be reached from itself");
        println!("after {steps} steps at most");
    }
}

#[test]
fn every_flaw_is_found() {
    for &(flaw, property) in FLAWS {
        let steps = shortest_counterexample(Protocol { flaw: Some(flaw), ..SMALL }, property)
            .unwrap_or_else(|| panic!("{flaw:?} passes \"{property}\""));
        println!("{flaw:?}: not \"{property}\" after {} steps: {steps:?}", steps.len());
    }
}

/// Every property holds in every state, and every state that must be reachable is.
fn check(protocol: Protocol) {
    let checked = protocol.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} steps between them", checked.unique_state_count(), checked.state_count());
    checked.assert_properties();
}

/// The fewest steps that lead to a state in which the property does not hold.
fn shortest_counterexample(protocol: Protocol, property: &'static str) -> Option<Vec<Action>> {
    const DEPTH_MAX: usize = 20;
    // The checker returns the last counterexample that it finds, so the search depth grows one step at a time.
    (2..=DEPTH_MAX).find_map(|depth| {
        let search = protocol.checker().target_max_depth(depth);
        let checked =
            search.finish_when(HasDiscoveries::AllOf(BTreeSet::from([property]))).spawn_bfs().join();
        checked.discovery(property).map(Path::into_actions)
    })
}

/// The maximum number of steps after a state, or `None` if the state can be reached from itself.
fn steps_to_the_end(
    protocol: Protocol,
    state: &State,
    known: &mut HashMap<State, Option<usize>>,
) -> Option<usize> {
    if let Some(&steps) = known.get(state) {
        return steps;
    }
    known.insert(state.clone(), None);
    let mut most = 0;
    for next in protocol.next_states(state) {
        most = most.max(1 + steps_to_the_end(protocol, &next, known)?);
    }
    known.insert(state.clone(), Some(most));
    Some(most)
}
