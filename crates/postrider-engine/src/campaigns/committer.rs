//! Writes settlements down and reserves the next items, for all jobs of the process together.
//!
//! Whatever has gathered while one commit was under way goes into the next, so a fast provider makes large transactions and
//! a slow one small ones, and nobody waits for a timer.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Pool, Settlement, StoreError,
    outbox::{Window, WindowAnswer, Writer},
};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Most items in one transaction.
const ITEMS_MAX: usize = 2048;
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often one submission is refused before it is believed.
const REFUSALS_MAX: u32 = 10;
/// How often a batch is tried as a whole.
const SPLIT_AFTER: u32 = 4;

/// What one job wants written down.
pub(super) struct Submission {
    pub(super) settlements: Vec<Settlement>,
    pub(super) window: Option<Window>,
    /// Hears what became of the window once everything is committed.
    pub(super) reply: oneshot::Sender<WindowAnswer>,
}

impl Submission {
    fn items(&self) -> usize {
        self.settlements.len() + self.window.as_ref().map_or(0, |window| window.items.len())
    }
}

/// Where jobs send what they want written down.
pub(super) type Submissions = mpsc::Sender<Submission>;

#[derive(Clone)]
pub(super) struct Committer {
    writer: Writer,
    worker: Arc<str>,
    queue: Arc<Mutex<mpsc::Receiver<Submission>>>,
}

impl Committer {
    pub(super) fn new(pool: Pool, worker: Arc<str>, queue: mpsc::Receiver<Submission>) -> Self {
        Self { writer: Writer::new(pool), worker, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Commits until nobody can submit any more.
    pub(super) async fn run(mut self) {
        while let Some(batch) = self.gather().await {
            self.write(batch).await;
        }
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

    /// Writes a batch. While the database is away it waits: an outcome is never dropped.
    async fn write(&mut self, batch: Vec<Submission>) {
        let mut pause = PAUSE_MIN;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.commit(&batch).await {
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
                        Box::pin(self.write(vec![one])).await;
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
        let settlements: Vec<&Settlement> =
            batch.iter().flat_map(|submission| &submission.settlements).collect();
        let windows: Vec<&Window> =
            batch.iter().filter_map(|submission| submission.window.as_ref()).collect();
        if settlements.is_empty() && windows.is_empty() {
            return Ok(Vec::new());
        }
        let answers = self.writer.settle_and_reserve(&self.worker, &settlements, &windows).await?;
        metrics::counter!("postrider_commits_total").increment(1);
        Ok(answers)
    }
}

fn answer(batch: Vec<Submission>, answers: Vec<WindowAnswer>) {
    let mut answers = answers.into_iter();
    for submission in batch {
        let answer = match submission.window {
            Some(_) => answers.next().unwrap_or(WindowAnswer::Lost),
            None => WindowAnswer::Items(Vec::new()),
        };
        // A job that is gone does not need it; its reservations are in doubt then.
        let _ = submission.reply.send(answer);
    }
}

/// Whether the database understood, and said no. Everything else passes, and is waited for.
fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { .. } | StoreError::ClaimNotHeld { .. } | StoreError::Unfit(_))
}
