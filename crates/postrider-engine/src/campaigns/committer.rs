//! Writes settlements down and reserves the next items, for all jobs of the process together.
//!
//! Whatever has gathered while one commit was under way goes into the next, so a fast provider makes large transactions and
//! a slow one small ones, and nobody waits for a timer.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Advice, DATABASE_URL, Settlement, StoreError,
    fence::Fence,
    outbox::{Window, WindowAnswer, Writer},
};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::writing::{Connected, Writing};

/// Most items in one transaction.
const ITEMS_MAX: usize = 2048;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often a committer tries to get a connection while others have one.
const CONNECT_EVERY: Duration = Duration::from_secs(1);
/// How often one submission is refused before it is believed.
const REFUSALS_MAX: u32 = 10;
/// How often a batch is tried as a whole.
const SPLIT_AFTER: u32 = 4;

/// What one job wants written down.
pub(super) struct Submission {
    pub(super) settlements: Vec<Settlement>,
    pub(super) window: Option<Window>,
    /// Whether the window was taken out, because the worker is starved of connections.
    pub(super) is_withdrawn: bool,
    /// Gets what became of the window once everything is committed.
    pub(super) reply: oneshot::Sender<Written>,
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
    fn items(&self) -> usize {
        self.settlements.len() + self.window.as_ref().map_or(0, |window| window.items.len())
    }
}

/// Where jobs send what they want written down.
pub(super) type Submissions = mpsc::Sender<Submission>;

pub(super) struct Committer {
    writer: Writer,
    /// Set while the writer has a connection.
    connected: Option<Connected>,
    writing: Arc<Writing>,
    worker: Arc<str>,
    queue: Arc<Mutex<mpsc::Receiver<Submission>>>,
}

/// Another one for the same queue, which has no connection yet.
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

    /// Commits until nobody can submit any more.
    pub(super) async fn run(mut self) {
        // Before the first submission, so that work never waits for a connection that others took meanwhile.
        let _ = self.connect().await;
        loop {
            // A committer without a connection leaves the work to those that have one.
            while self.connected.is_none() && self.writing.any_is_connected() && self.connect().await.is_err()
            {
                tokio::time::sleep(CONNECT_EVERY).await;
            }
            let Some(batch) = self.gather().await else { return };
            self.write(batch, false).await;
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

    /// The same, but does not try while it is known that there is none to be had.
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

    /// Waits for one submission and takes along what is there already.
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

    /// Writes a batch. While the database is away it waits: an outcome is never dropped. `was_sent` says whether the database may
    /// have got a part of it already: then its windows may be reserved, and are not withdrawn.
    async fn write(&mut self, mut batch: Vec<Submission>, mut was_sent: bool) {
        let mut pause = PAUSE_MIN;
        let mut tries = 0;
        loop {
            tries += 1;
            let written = match self.connect_unless_starved().await {
                Ok(()) => {
                    was_sent = true;
                    self.commit(&batch).await
                }
                Err(error) if !self.writing.others_work().await => Err(error),
                // The database was away, and is back.
                Err(_) if !self.writing.is_starved() && self.connect().await.is_ok() => continue,
                Err(_) => {
                    if self.writing.starve() && !was_sent {
                        batch = withdraw_windows(batch);
                        if batch.is_empty() {
                            return;
                        }
                    }
                    was_sent = true;
                    // Outcomes are not kept waiting, and neither is what may be reserved already.
                    self.commit_with(&mut self.writer.over(self.writing.others.clone()), &batch).await
                }
            };
            match &written {
                Err(error) if !is_refusal(error) => self.writing.health.failed(error),
                _ => self.writing.health.passed(),
            }
            match written {
                Ok(answers) => return answer(batch, answers),
                // What takes too long together may do in parts.
                Err(error)
                    if !is_refusal(&error)
                        && (tries < SPLIT_AFTER || error.is_outage() || batch.len() == 1) =>
                {
                    metrics::counter!("postrider_commits_retried_total").increment(1);
                    tracing::warn!(error = ?error, "outcomes wait for the database: {error}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) if batch.len() > 1 => {
                    tracing::error!(error = ?error, "a commit was refused; its parts are tried one by one: {error}");
                    for one in batch {
                        Box::pin(self.write(vec![one], was_sent)).await;
                    }
                    return;
                }
                Err(error) => return self.write_alone(batch, error).await,
            }
        }
    }

    /// A submission that the database refuses by itself, which is a mistake of ours. Its window is given up; its outcomes
    /// are tried without it, and if they are refused as well, their rows stay as they are and are in doubt.
    async fn write_alone(&mut self, mut batch: Vec<Submission>, mut error: StoreError) {
        for submission in &mut batch {
            submission.window = None;
        }
        let mut refusals = 0;
        while refusals < REFUSALS_MAX {
            tracing::error!(error = ?error, "outcomes were refused: {error}");
            match self.commit(&batch).await {
                Ok(_) => break,
                Err(again) => error = again,
            }
            refusals += u32::from(is_refusal(&error));
            tokio::time::sleep(PAUSE_MAX / 10).await;
        }
        // Dropping the replies tells the jobs that they cannot go on.
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

fn answer(batch: Vec<Submission>, answers: Vec<WindowAnswer>) {
    let mut answers = answers.into_iter();
    for submission in batch {
        let written = match submission.window {
            Some(_) => Written::Window(answers.next().unwrap_or(WindowAnswer::Lost)),
            None if submission.is_withdrawn => Written::Withdrawn,
            None => Written::Window(WindowAnswer::Items(Vec::new())),
        };
        // A job that is gone does not need it; its reservations are in doubt then.
        let _ = submission.reply.send(written);
    }
}

/// Takes the windows out of a batch that never reached the database. What is left are outcomes, which must be written.
fn withdraw_windows(batch: Vec<Submission>) -> Vec<Submission> {
    let mut outcomes = Vec::new();
    for mut submission in batch {
        submission.is_withdrawn |= submission.window.take().is_some();
        if submission.is_withdrawn && submission.settlements.is_empty() {
            let _ = submission.reply.send(Written::Withdrawn);
        } else {
            outcomes.push(submission);
        }
    }
    outcomes
}

/// Whether the database understood, and said no. Everything else passes, and is waited for.
fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. } | StoreError::ClaimNotHeld { .. } | StoreError::Unfit(_))
}
