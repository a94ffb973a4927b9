//! Commits settlements and the next reservations of all send jobs of the process together.
//!
//! The submissions that gather during one commit go into the next one (`common/recorder.rs`).

use std::sync::Arc;

use postrider_store::{
    Advice, DATABASE_URL, Settlement, StoreError,
    campaigns::outbox::{Window, WindowAnswer, Writer},
    tenancy::fence::Fence,
};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::writing::{Connected, Writing};
use crate::common::recorder::{Failure, Ledger, record};

/// Most items in one transaction.
const ITEMS_MAX: usize = 2048;
/// How often a committer tries to get a connection while other committers have one.
const CONNECT_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// How often the settlements of one submission are written again after the database refused them.
const REFUSALS_MAX: u32 = 10;
/// The pause between two such writes.
const REFUSAL_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
/// How often a batch is tried as a whole.
const SPLIT_AFTER: u32 = 4;

/// The results of one send job, and its next window.
pub(super) struct Submission {
    settlements: Vec<Settlement>,
    window: Option<Window>,
    /// Whether the window was taken out, because the worker is starved of connections.
    is_withdrawn: bool,
    /// Whether the database may have received the window: then it may be reserved, and is not withdrawn.
    was_sent: bool,
    /// Receives the result of the window once everything is committed.
    reply: oneshot::Sender<Written>,
}

/// The result of a submission.
#[derive(Debug)]
pub(super) enum Written {
    /// Everything is committed.
    Window(WindowAnswer),
    /// The outcomes are committed. The window never reached the database, because the worker is starved of connections.
    Withdrawn,
}

impl Submission {
    pub(super) fn new(
        settlements: Vec<Settlement>,
        window: Option<Window>,
        reply: oneshot::Sender<Written>,
    ) -> Self {
        Self { settlements, window, is_withdrawn: false, was_sent: false, reply }
    }

    fn items(&self) -> usize {
        self.settlements.len() + self.window.as_ref().map_or(0, |window| window.items.len())
    }
}

/// Sends submissions to the committers.
pub(super) type Submissions = mpsc::Sender<Submission>;

pub(super) struct Committer {
    writer: Writer,
    /// Set while the writer has a connection.
    connected: Option<Connected>,
    writing: Arc<Writing>,
    worker: Arc<str>,
    queue: Arc<Mutex<mpsc::Receiver<Submission>>>,
}

/// Another committer for the same queue, which has no connection yet.
impl Clone for Committer {
    fn clone(&self) -> Self {
        Self {
            writer: self.writer.clone(),
            connected: None,
            writing: Arc::clone(&self.writing),
            worker: Arc::clone(&self.worker),
            queue: Arc::clone(&self.queue),
        }
    }
}

impl Committer {
    pub(super) fn new(writing: Arc<Writing>, worker: Arc<str>, queue: mpsc::Receiver<Submission>) -> Self {
        let writer = Writer::new(writing.writes.clone());
        Self { writer, connected: None, writing, worker, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Reserves only while this fence is open.
    pub(super) fn fenced(self, fence: Fence) -> Self {
        Self { writer: self.writer.with_fence(fence), ..self }
    }

    /// Commits until the last sender of submissions is gone.
    pub(super) async fn run(mut self) {
        // Before the first submission, so that work never waits for a connection that other processes took meanwhile.
        let _ = self.connect().await;
        loop {
            // A committer without a connection leaves the work to committers that have one.
            while self.connected.is_none() && self.writing.any_is_connected() && self.connect().await.is_err()
            {
                tokio::time::sleep(CONNECT_EVERY).await;
            }
            let Some(batch) = self.gather().await else { return };
            record(&mut self, batch).await;
        }
    }

    /// Gets a connection, if there is none. After an error nothing has reached the database.
    async fn connect(&mut self) -> Result<(), StoreError> {
        self.writer.connect().await?;
        if self.connected.is_none() {
            self.connected = Some(self.writing.connected());
        }
        Ok(())
    }

    /// The same, but does not try while the worker is known to be starved.
    async fn connect_unless_starved(&mut self) -> Result<(), StoreError> {
        if self.connected.is_none() && self.writing.is_starved() {
            let reason = "the worker gets no connection to write with".to_owned();
            return Err(StoreError::Unreachable {
                reason,
                advice: Advice::Connections,
                setting: DATABASE_URL,
            });
        }
        self.connect().await
    }

    /// Waits for one submission and takes those that are there already.
    async fn gather(&self) -> Option<Vec<Submission>> {
        let mut queue = self.queue.lock().await;
        let first = queue.recv().await?;
        let mut items = first.items();
        let mut batch = vec![first];
        while items < ITEMS_MAX {
            let Ok(next) = queue.try_recv() else { break };
            items += next.items();
            batch.push(next);
        }
        Some(batch)
    }

    /// Writes a batch over the first connections that work. Outcomes never wait for starved write connections.
    async fn write_anyhow(&mut self, batch: &mut Vec<Submission>) -> Result<Vec<WindowAnswer>, StoreError> {
        loop {
            let error = match self.connect_unless_starved().await {
                Ok(()) => {
                    batch.iter_mut().for_each(|submission| submission.was_sent = true);
                    return self.commit(batch).await;
                }
                Err(error) => error,
            };
            if !self.writing.others_work().await {
                return Err(error);
            }
            // The database was unavailable, and is available again.
            if !self.writing.is_starved() && self.connect().await.is_ok() {
                continue;
            }
            if self.writing.starve() {
                withdraw_windows(batch);
            }
            batch.iter_mut().for_each(|submission| submission.was_sent = true);
            let mut writer = self.writer.over(self.writing.others.clone());
            return self.commit_with(&mut writer, batch).await;
        }
    }

    async fn commit(&mut self, batch: &[Submission]) -> Result<Vec<WindowAnswer>, StoreError> {
        let idle = self.writer.over(self.writing.writes.clone());
        let mut writer = std::mem::replace(&mut self.writer, idle);
        let written = self.commit_with(&mut writer, batch).await;
        self.writer = writer;
        match (self.writer.is_connected(), &self.connected) {
            (true, None) => self.connected = Some(self.writing.connected()),
            (false, Some(_)) => self.connected = None,
            _ => {}
        }
        written
    }

    async fn commit_with(
        &self,
        writer: &mut Writer,
        batch: &[Submission],
    ) -> Result<Vec<WindowAnswer>, StoreError> {
        let settlements: Vec<&Settlement> =
            batch.iter().flat_map(|submission| &submission.settlements).collect();
        let windows: Vec<&Window> =
            batch.iter().filter_map(|submission| submission.window.as_ref()).collect();
        if settlements.is_empty() && windows.is_empty() {
            return Ok(Vec::new());
        }
        let answers = writer.settle_and_reserve(&self.worker, &settlements, &windows).await?;
        metrics::counter!("postrider_commits_total").increment(1);
        Ok(answers)
    }
}

impl Ledger for Committer {
    type Entry = Submission;
    type Receipt = Vec<WindowAnswer>;

    const BATCH_MAX: usize = ITEMS_MAX;
    const NAME: &'static str = "outcomes and reservations";

    async fn write(&mut self, batch: &mut Vec<Submission>) -> Result<Vec<WindowAnswer>, StoreError> {
        let written = self.write_anyhow(batch).await;
        match &written {
            Err(error) if !is_refusal(error) => self.writing.health.failed(error),
            _ => self.writing.health.passed(),
        }
        written
    }

    fn recorded(&mut self, batch: Vec<Submission>, answers: Vec<WindowAnswer>) {
        let mut answers = answers.into_iter();
        for submission in batch {
            let written = match submission.window {
                Some(_) => Written::Window(answers.next().unwrap_or(WindowAnswer::Lost)),
                None if submission.is_withdrawn => Written::Withdrawn,
                None => Written::Window(WindowAnswer::Items(Vec::new())),
            };
            // A send job that is gone does not need it; its reservations are in doubt then.
            let _ = submission.reply.send(written);
        }
    }

    /// The database refuses one submission, which is a mistake of ours. Its window is given up. Its outcomes are written without it; if
    /// they are refused as well, their rows stay as they are and are in doubt. Dropping the reply ends the send job.
    async fn refused(&mut self, submission: Submission, mut error: StoreError) -> Option<Submission> {
        let alone = [Submission { window: None, ..submission }];
        let mut refusals = 0;
        while refusals < REFUSALS_MAX {
            tracing::error!(error = ?error, "the database refused outcomes: {error}");
            match self.commit(&alone).await {
                Ok(_) => break,
                Err(again) => error = again,
            }
            refusals += u32::from(is_refusal(&error));
            tokio::time::sleep(REFUSAL_PAUSE).await;
        }
        None
    }

    fn classify(error: &StoreError, tries: u32) -> Failure {
        if is_refusal(error) {
            Failure::Refused
        } else if tries < SPLIT_AFTER || error.is_outage() {
            Failure::Passing
        } else {
            Failure::TooLarge
        }
    }

    fn retrying(&self, submissions: usize, error: &StoreError) {
        metrics::counter!("postrider_commits_retried_total").increment(1);
        tracing::warn!(error = ?error, submissions, "outcomes wait for the database: {error}");
    }
}

/// Takes the windows out of submissions that never reached the database. The rest are outcomes, which must be written.
fn withdraw_windows(batch: &mut Vec<Submission>) {
    let mut outcomes = Vec::new();
    for mut submission in batch.drain(..) {
        if !submission.was_sent {
            submission.is_withdrawn |= submission.window.take().is_some();
        }
        if submission.is_withdrawn && submission.settlements.is_empty() {
            let _ = submission.reply.send(Written::Withdrawn);
        } else {
            outcomes.push(submission);
        }
    }
    *batch = outcomes;
}

/// Whether the database understood the batch and refused it. Every other error passes, and the committer waits for that.
fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. } | StoreError::ClaimNotHeld { .. } | StoreError::Unfit(_))
}
