//! Items on their way: planned, being reserved, being moved to the other account.

use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

use postrider_model::Message;
use postrider_store::{
    Reservation,
    outbox::{MovedOver, PlannedItem},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::{Shared, committer::Written, failover, turns::Way};

/// A stretch of items that are about to be reserved.
pub(super) struct Ready {
    pub(super) way: Way,
    pub(super) first: usize,
    pub(super) items: VecDeque<(PlannedItem, Option<Message>)>,
    pub(super) permits: OwnedSemaphorePermit,
    pub(super) made_at: Instant,
}

impl Ready {
    pub(super) fn calls(&self) -> usize {
        self.items.iter().filter(|(_, message)| message.is_some()).count()
    }

    /// The items in front that need no more than so many turns. Nothing when there are none.
    pub(super) fn cut(&mut self, turns: usize) -> Option<Self> {
        let mut calls = 0;
        let fits = |(_, message): &&(PlannedItem, Option<Message>)| {
            calls += usize::from(message.is_some());
            calls <= turns
        };
        let count = self.items.iter().take_while(fits).count();
        let permits = self.permits.split(count).filter(|_| count > 0)?;
        let rest = self.items.split_off(count);
        let items = std::mem::replace(&mut self.items, rest);
        let part = Self { way: self.way, first: self.first, items, permits, made_at: self.made_at };
        self.first += count;
        Some(part)
    }
}

/// The window that is being reserved: its items, in order.
pub(super) struct Reserving {
    pub(super) way: Way,
    pub(super) messages: Vec<(Uuid, Option<Message>)>,
    pub(super) permits: Option<OwnedSemaphorePermit>,
    pub(super) answer: oneshot::Receiver<Written>,
}

/// What is called under a reservation.
pub(super) struct Errand {
    pub(super) item: Uuid,
    pub(super) message: Message,
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// What came of moving a window: what is called at the other account, and what is not.
pub(super) struct Moved {
    pub(super) items: Vec<(Reservation, Errand)>,
    pub(super) kept: Vec<Reservation>,
}

/// Moves a window to the other account, all at once.
pub(super) async fn move_window(shared: &Shared, items: Vec<(Reservation, Errand)>) -> Moved {
    let mut held = HashMap::new();
    let mut reservations = Vec::with_capacity(items.len());
    for (reservation, errand) in items {
        held.insert(reservation.outbox_id(), errand);
        reservations.push(reservation);
    }
    let MovedOver { moved, mut kept } = failover::move_over(shared, reservations).await;
    let mut items = Vec::with_capacity(moved.len());
    for reservation in moved {
        match held.remove(&reservation.outbox_id()) {
            Some(errand) => items.push((reservation, errand)),
            None => kept.push(reservation),
        }
    }
    Moved { items, kept }
}
