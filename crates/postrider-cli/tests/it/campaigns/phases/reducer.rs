//! A client that follows the contract ends where the server is, whatever order things reach it in.
//!
//! The history is a real one. The client is the contract's: a snapshot overwrites everything, an event counts only if its
//! number is higher than the last, what the client hoped for is forgotten with the next of either, and progress never
//! touches a state.

use std::collections::BTreeMap;

use postrider_model::{
    campaigns::{EventType, PhaseStatus, PhaseTrigger},
    ids::{CampaignId, TenantId},
};
use postrider_store::{
    Pool,
    campaigns::{
        self,
        history::{self, CampaignEvent},
        phases::{self, Control, Reach},
    },
    postgres::pool,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde_json::json;
use uuid::Uuid;

use crate::{campaigns::stage::Stage, world::World};

const PHASES: [&str; 3] = ["mail", "check", "call"];

/// The known state and progress of each phase.
type Known = BTreeMap<String, (PhaseStatus, f64)>;

/// A snapshot, as far as the contract goes.
#[derive(Debug, Clone)]
struct Taken {
    sequence: i64,
    phases: Known,
}

/// The contract's client.
#[derive(Debug, Clone)]
struct Client {
    known: Known,
    last_applied: i64,
    /// States that the client shows until the server confirms or replaces them.
    hoped: BTreeMap<String, PhaseStatus>,
}

impl Client {
    fn new(snapshot: &Taken) -> Self {
        Self { known: snapshot.phases.clone(), last_applied: snapshot.sequence, hoped: BTreeMap::new() }
    }

    /// Always wins.
    fn snapshot(&mut self, snapshot: &Taken) {
        *self = Self::new(snapshot);
    }

    fn event(&mut self, event: &CampaignEvent) {
        if event.sequence <= self.last_applied {
            return;
        }
        self.last_applied = event.sequence;
        self.hoped.remove(&event.phase);
        let Some((status, progress)) = self.known.get_mut(&event.phase) else { return };
        match event.r#type.sets() {
            Some(sets) => *status = sets,
            None => *progress = event.payload["progressPercentage"].as_f64().unwrap_or(f64::NAN),
        }
    }

    fn hope(&mut self, phase: &str, trigger: PhaseTrigger) {
        let shown = self.shown(phase);
        if let Some(next) = shown.and_then(|status| status.after(trigger)) {
            self.hoped.insert(phase.to_owned(), next);
        }
    }

    fn shown(&self, phase: &str) -> Option<PhaseStatus> {
        self.hoped.get(phase).copied().or_else(|| self.known.get(phase).map(|known| known.0))
    }
}

/// Inputs of a client, in any order.
#[derive(Debug, Clone)]
enum Happens {
    /// The stream goes on by so many events.
    Streams(usize),
    /// An event comes a second time.
    Repeats(prop::sample::Index),
    /// The person presses a button.
    Presses(prop::sample::Index, prop::sample::Index),
    /// The client requests a snapshot, and the response is newer than the stream's position.
    Asks(usize),
    /// The connection is lost; so much happens meanwhile; a snapshot is taken before anything else is read.
    Reconnects(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (1..8_usize).prop_map(Happens::Streams),
        2 => any::<prop::sample::Index>().prop_map(Happens::Repeats),
        2 => (any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(|(phase, by)| Happens::Presses(phase, by)),
        1 => (0..5_usize).prop_map(Happens::Asks),
        1 => (0..20_usize).prop_map(Happens::Reconnects),
    ]
}

struct Server<'a> {
    app: &'a Pool,
    tenant: TenantId,
    campaign: CampaignId,
}

impl Server<'_> {
    async fn snapshot(&self) -> anyhow::Result<Taken> {
        let snapshot = campaigns::snapshot(self.app, self.tenant, self.campaign).await?;
        let snapshot = snapshot.ok_or_else(|| anyhow::anyhow!("no campaign"))?;
        let phases = snapshot.phases.into_iter().map(|phase| (phase.phase, (phase.status, phase.progress)));
        Ok(Taken { sequence: snapshot.sequence, phases: phases.collect() })
    }

    /// Something happens to a phase; what is not allowed changes nothing.
    async fn disturb(&self, phase: &str, choice: u64) -> anyhow::Result<()> {
        let triggers = PhaseTrigger::ALL;
        let choice = usize::try_from(choice % (2 * triggers.len() as u64))?;
        if let Some(trigger) = triggers.get(choice) {
            let control = Control {
                campaign: self.campaign,
                phase,
                trigger: *trigger,
                expected: None,
                expected_sequence: None,
                reach: Reach::Usual,
                reason: None,
                actor: "a test",
            };
            phases::control(self.app, self.tenant, control).await?;
        } else {
            let mut transaction = pool::begin_as(self.app, self.tenant).await?;
            phases::report_progress(
                &mut transaction,
                self.tenant,
                self.campaign,
                phase,
                choice as f64 * 6.5,
                "a test",
            )
            .await?;
            pool::commit(transaction).await?;
        }
        Ok(())
    }

    /// The history, and the snapshot at every moment of it that there was one.
    async fn live(
        &self,
        admin: &sqlx::PgPool,
        steps: u64,
    ) -> anyhow::Result<(Vec<CampaignEvent>, Vec<Taken>)> {
        let mut taken = vec![self.snapshot().await?];
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..steps {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let phase = PHASES[usize::try_from((state >> 40) % 3)?];
            self.disturb(phase, state >> 50).await?;
            // As if a second had passed, so that everything that was reported is said.
            crate::sql::execute(
                admin,
                "update execution.campaigns set progress_at = progress_at - interval '2 seconds';
                 select execution.note_progress(due.tenant_id, 'nobody')
                   from execution.tenants_with_due_progress('nobody') as due",
            )
            .await?;
            taken.push(self.snapshot().await?);
        }
        let mut transaction = pool::begin_as(self.app, self.tenant).await?;
        let events = history::after(&mut transaction, self.tenant, self.campaign, 0, 100_000).await?;
        Ok((events, taken))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_ends_in_the_servers_state_after_any_order_of_inputs() -> anyhow::Result<()> {
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    let campaign = Uuid::now_v7();
    let described: Vec<_> = PHASES
        .iter()
        .map(|phase| json!({ "id": Uuid::now_v7(), "phase": phase, "kind": "external" }))
        .collect();
    stage
        .ask(&format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), '{campaign}', '{}', 'news', false, '{}', 'a test')::text",
            stage.workspace,
            json!(described)
        ))
        .await?;
    let app = world.pool("postrider_app").await?;
    let server = Server { app: &app, tenant: TenantId(stage.tenant), campaign: CampaignId(campaign) };
    let (events, taken) = server.live(&stage.admin, 300).await?;
    anyhow::ensure!(events.len() > 60, "only {} events", events.len());
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event.sequence, i64::try_from(n)? + 1, "the history has no gaps");
    }
    let kinds: Vec<EventType> = EventType::ALL.to_vec();
    assert!(
        kinds.iter().all(|kind| events.iter().any(|event| event.r#type == *kind)),
        "not every kind happened"
    );

    let (start, end) = (&taken[0], &taken[taken.len() - 1]);
    // A snapshot that was asked for after so many events: it includes them, and perhaps more.
    let snapshot_after = |count: usize| {
        let includes = |snapshot: &&Taken| usize::try_from(snapshot.sequence).is_ok_and(|last| last >= count);
        taken.iter().find(includes).unwrap_or(end)
    };
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    runner
        .run(&prop::collection::vec(happens(), 1..80), |script| {
            let mut client = Client::new(start);
            let mut read = 0; // how far the stream has been read
            for step in script {
                let statuses = |client: &Client| -> Vec<PhaseStatus> {
                    client.known.values().map(|known| known.0).collect()
                };
                match step {
                    Happens::Streams(count) => {
                        for event in events.iter().skip(read).take(count) {
                            let before = statuses(&client);
                            client.event(event);
                            if event.r#type == EventType::CampaignProgress {
                                prop_assert_eq!(before, statuses(&client), "progress touched a state");
                            }
                        }
                        read = (read + count).min(events.len());
                    }
                    Happens::Repeats(which) if read > 0 => {
                        let before = client.clone();
                        client.event(&events[which.index(read)]);
                        prop_assert_eq!(&before.known, &client.known, "a stale event counted");
                    }
                    Happens::Repeats(_) => {}
                    Happens::Presses(phase, by) => {
                        let before = client.known.clone();
                        client.hope(PHASES[phase.index(3)], PhaseTrigger::ALL[by.index(7)]);
                        prop_assert_eq!(&before, &client.known, "a hope became knowledge");
                    }
                    Happens::Asks(ahead) => {
                        // Events that the snapshot includes come after it, and do not count again.
                        client.snapshot(snapshot_after((read + ahead).min(events.len())));
                    }
                    Happens::Reconnects(missed) => {
                        let snapshot = snapshot_after((read + missed).min(events.len()));
                        client.snapshot(snapshot);
                        read = usize::try_from(snapshot.sequence).unwrap_or_default();
                    }
                }
            }
            for event in events.iter().skip(read) {
                client.event(event);
            }
            prop_assert_eq!(&client.known, &end.phases);
            prop_assert_eq!(client.last_applied, end.sequence);
            // The next snapshot ends every optimistic state.
            client.snapshot(end);
            for phase in PHASES {
                prop_assert_eq!(client.shown(phase), end.phases.get(phase).map(|known| known.0));
            }
            Ok(())
        })
        .map_err(|error| anyhow::anyhow!("{error}"))
}
