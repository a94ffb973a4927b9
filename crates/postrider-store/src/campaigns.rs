//! Campaigns: create, deploy, find, list, and how they stand. What works on them is in [`crate::jobs`] and
//! [`crate::outbox`].
//!
//! Functions that change something act in the tenant of the transaction. Functions that read name the tenant as well,
//! because an operator's login sees every tenant's rows.

use std::{collections::HashMap, fmt, str::FromStr};

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::{
    Channel,
    campaign::{PhaseKind, PhaseStatus},
    ids::{AssetId, CampaignId, PhaseId, RunId, TenantId, WorkspaceId},
    words::NotAWord,
};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};

use crate::{
    Pool, StoreError,
    limits::{self, Waiting},
    pool,
    runs::{self, Progress, Run},
    unnamed::unnamed,
};

/// Items per job, unless said otherwise.
pub const JOB_SIZE: i32 = 500;
/// Most items per job.
pub const JOB_SIZE_MAX: i32 = 10_000;
/// Most phases of a campaign.
const PHASES_MAX: usize = 100;

/// What a new campaign consists of.
#[derive(Debug, Clone)]
pub struct NewCampaign {
    /// What the tenant calls it.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Its steps, in order.
    pub phases: Vec<NewPhase>,
}

/// What a new phase consists of. Lists and accounts are named; they must exist.
#[derive(Debug, Clone, Serialize)]
pub struct NewPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Who does it.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// What is sent.
    pub asset_id: Option<AssetId>,
    /// To whom. A social phase without a list is one post.
    pub list: Option<String>,
    /// Through whom.
    pub provider_account: Option<String>,
    /// Through whom instead, where that one provably did not send an item.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: Option<f64>,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    pub quiet_time_seconds: Option<u32>,
}

/// What is wrong with a campaign that somebody wants to create: one sentence, and the field that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Which of the phases, counted from 0; none when it is about the campaign.
    pub at: Option<usize>,
    /// The name of that phase, where the sentence does not say it.
    pub phase: Option<String>,
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Mistake {
    /// One in a phase, at this place among the others.
    #[must_use]
    pub fn in_phase(at: usize, phase: &str, field: &'static str, problem: impl Into<String>) -> Self {
        Self { at: Some(at), phase: Some(phase.to_owned()), field, problem: problem.into() }
    }

    fn in_name(at: usize, problem: String) -> Self {
        Self { at: Some(at), phase: None, field: "phase", problem }
    }

    fn in_campaign(field: &'static str, problem: impl Into<String>) -> Self {
        Self { at: None, phase: None, field, problem: problem.into() }
    }

    /// Where it is, such as `phases[0].channel`.
    #[must_use]
    pub fn path(&self) -> String {
        match self.at {
            Some(at) => format!("phases[{at}].{}", self.field),
            None => self.field.to_owned(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(phase) = &self.phase {
            write!(f, "phase `{phase}`: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Mistake {}

impl From<Mistake> for StoreError {
    fn from(mistake: Mistake) -> Self {
        Self::Refused { message: mistake.to_string(), hint: None }
    }
}

impl NewCampaign {
    /// What can be said about it without asking the database.
    pub fn check(&self) -> Result<(), Mistake> {
        if self.name.trim().is_empty() || self.name.len() > 255 {
            return Err(Mistake::in_campaign("name", "a campaign needs a name of 1 to 255 bytes"));
        }
        if self.name.contains(char::is_control) {
            return Err(Mistake::in_campaign("name", "the name of a campaign has no control characters"));
        }
        if self.phases.is_empty() || self.phases.len() > PHASES_MAX {
            let count = self.phases.len();
            return Err(Mistake::in_campaign(
                "phases",
                format!("a campaign has between 1 and {PHASES_MAX} phases, not {count}"),
            ));
        }
        for (at, phase) in self.phases.iter().enumerate() {
            let name = &phase.phase;
            if !is_simple(name) {
                return Err(Mistake::in_name(
                    at,
                    format!(
                        "`{}` is not a name for a phase; use up to 63 of a-z, 0-9, `-` and `_`, like `first-mail`",
                        name.escape_debug()
                    ),
                ));
            }
            if self.phases.iter().take(at).any(|earlier| earlier.phase == *name) {
                return Err(Mistake::in_name(
                    at,
                    format!("two phases are called `{name}`; give one another name"),
                ));
            }
            if let Some((field, problem)) = phase.problem() {
                return Err(Mistake::in_phase(at, name, field, problem));
            }
        }
        Ok(())
    }
}

impl NewPhase {
    fn problem(&self) -> Option<(&'static str, String)> {
        if self.failure_tolerance.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            let problem = "failure_tolerance is a share between 0 and 1, such as 0.05";
            return Some(("failure_tolerance", problem.to_owned()));
        }
        if self.quiet_time_seconds == Some(0) {
            return Some(("quiet_time_seconds", "quiet_time_seconds must be at least 1".to_owned()));
        }
        match self.kind {
            PhaseKind::External => {
                let given = [
                    ("asset_id", self.asset_id.is_some()),
                    ("list", self.list.is_some()),
                    ("provider_account", self.provider_account.is_some()),
                    ("failover_account", self.failover_account.is_some()),
                ];
                let (field, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
                let problem =
                    format!("another service does an external phase, so `{field}` does not belong here");
                Some((field, problem))
            }
            PhaseKind::Delivery => {
                let missing = [
                    ("channel", self.channel.is_none()),
                    ("asset_id", self.asset_id.is_none()),
                    ("provider_account", self.provider_account.is_none()),
                    ("list", self.list.is_none() && self.channel != Some(Channel::Social)),
                ];
                if let Some((field, _)) = missing.into_iter().find(|(_, is_missing)| *is_missing) {
                    return Some((field, format!("`{field}` is missing")));
                }
                if self.channel == Some(Channel::Chat) {
                    let problem = "campaigns have no chat; known are email, voice and social";
                    return Some(("channel", problem.to_owned()));
                }
                let problem = "it fails over to the account that it uses anyway; name another one";
                (self.failover_account.is_some() && self.failover_account == self.provider_account)
                    .then(|| ("failover_account", problem.to_owned()))
            }
        }
    }
}

/// As the check `campaign_phases_name_is_simple` says it.
fn is_simple(name: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 63 && name.starts_with(small) && name.chars().all(|c| small(c) || c == '-' || c == '_')
}

/// Makes a campaign in the tenant of the transaction; all of it or nothing.
pub async fn create(
    connection: &mut PgConnection,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
    actor: &str,
) -> Result<CampaignId, StoreError> {
    #[derive(Serialize)]
    struct Row<'a> {
        id: PhaseId,
        #[serde(flatten)]
        phase: &'a NewPhase,
    }

    campaign.check()?;
    let id = CampaignId::new();
    let phases: Vec<Row<'_>> =
        campaign.phases.iter().map(|phase| Row { id: PhaseId::new(), phase }).collect();
    sqlx::query!(
        "select execution.create_campaign($1, $2, $3, $4, $5, $6)",
        id.0,
        workspace.0,
        campaign.name,
        campaign.auto_advance,
        Json(&phases) as _,
        actor,
    )
    .fetch_one(unnamed(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("campaigns_one_per_name") => StoreError::Conflict {
            message: format!("a campaign called `{}` exists already; choose another name", campaign.name),
        },
        _ => StoreError::on("creating the campaign")(error),
    })?;
    Ok(id)
}

/// What a deployment answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deployed {
    /// The run of the phase.
    pub run_id: RunId,
    /// Whether this very deployment made it. Otherwise it was under way before, and nothing changed.
    pub is_new: bool,
}

/// Deploys a phase, or without a name the one that is next. Wake the workers with [`crate::jobs::hint`] after the commit.
pub async fn deploy(
    connection: &mut PgConnection,
    campaign: CampaignId,
    phase: Option<&str>,
    job_size: i32,
    actor: &str,
) -> Result<Deployed, StoreError> {
    let made = RunId::new();
    let run_id = sqlx::query_scalar!(
        r#"select execution.deploy_campaign($1, $2, $3, $4, $5) as "id!""#,
        campaign.0,
        phase,
        actor,
        made.0,
        job_size,
    )
    .fetch_one(unnamed(connection))
    .await
    .map(RunId)
    .map_err(StoreError::on("deploying the campaign"))?;
    Ok(Deployed { run_id, is_new: run_id == made })
}

/// A campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Campaign {
    /// Its id.
    pub id: CampaignId,
    /// Where it belongs.
    pub workspace_id: WorkspaceId,
    /// What the tenant calls it.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Since when.
    pub created_at: Timestamp,
}

/// A campaign by its name or its id.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    name_or_id: &str,
) -> Result<Option<Campaign>, StoreError> {
    let row = sqlx::query!(
        r#"
        select id,
               workspace_id,
               name,
               auto_advance,
               created_at as "created_at: jiff_sqlx::Timestamp"
          from execution.campaigns
         where tenant_id = $1
           and (id = $2 or name = $3)
         order by id = $2 desc nulls last, created_at desc
         limit 1
        "#,
        tenant.0,
        name_or_id.parse::<CampaignId>().ok().map(|id| id.0),
        name_or_id,
    )
    .fetch_optional(unnamed(connection))
    .await
    .map_err(StoreError::on("looking for the campaign"))?;
    Ok(row.map(|row| Campaign {
        id: CampaignId(row.id),
        workspace_id: WorkspaceId(row.workspace_id),
        name: row.name,
        auto_advance: row.auto_advance,
        created_at: row.created_at.to_jiff(),
    }))
}

/// One campaign. `None` when the tenant has no such campaign.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: CampaignId,
) -> Result<Option<Campaign>, StoreError> {
    // What reads as an id may be the name of another one, which is not meant here.
    let found = find(connection, tenant, &id.0.to_string()).await?;
    Ok(found.filter(|campaign| campaign.id == id))
}

/// A campaign in a list.
#[derive(Debug, Clone, Serialize)]
pub struct Listed {
    /// Which one.
    #[serde(flatten)]
    pub campaign: Campaign,
    /// Its phases, in order.
    pub phases: Vec<ListedPhase>,
}

/// A phase in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Where it stands.
    pub status: PhaseStatus,
}

/// The newest campaigns of a tenant.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    page(connection, tenant, None, limit).await
}

/// The campaigns of a tenant, newest first: those after a given one, or from the beginning.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: Option<(Timestamp, CampaignId)>,
    limit: i64,
) -> Result<Vec<Listed>, StoreError> {
    let (at, id) = after.unzip();
    let rows = sqlx::query!(
        r#"
        select campaign.id,
               campaign.workspace_id,
               campaign.name,
               campaign.auto_advance,
               campaign.created_at as "created_at: jiff_sqlx::Timestamp",
               phases.names as "names!",
               phases.statuses as "statuses!"
          from execution.campaigns as campaign
               cross join lateral (
                   select array_agg(phase.phase order by phase.position) as names,
                          array_agg(phase.status order by phase.position) as statuses
                     from execution.campaign_phases as phase
                    where phase.tenant_id = campaign.tenant_id
                      and phase.campaign_id = campaign.id) as phases
         where campaign.tenant_id = $1
           and ($3::timestamptz is null or (campaign.created_at, campaign.id) < ($3, $4::uuid))
         order by campaign.created_at desc, campaign.id desc
         limit $2
        "#,
        tenant.0,
        limit,
        at.map(ToSqlx::to_sqlx) as _,
        id.map(|id| id.0),
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("listing the campaigns"))?;
    rows.into_iter()
        .map(|row| {
            let phases = row
                .names
                .into_iter()
                .zip(row.statuses)
                .map(|(phase, status)| word(&status).map(|status| ListedPhase { phase, status }));
            Ok(Listed {
                campaign: Campaign {
                    id: CampaignId(row.id),
                    workspace_id: WorkspaceId(row.workspace_id),
                    name: row.name,
                    auto_advance: row.auto_advance,
                    created_at: row.created_at.to_jiff(),
                },
                phases: phases.collect::<Result<_, _>>()?,
            })
        })
        .collect()
}

/// How a phase stands.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseState {
    /// Its id.
    pub id: PhaseId,
    /// Its name inside the campaign.
    pub phase: String,
    /// Who does it.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// Where it stands.
    pub status: PhaseStatus,
    /// How far it is, in percent.
    pub progress: f64,
    /// The asset that it sends.
    pub asset_id: Option<AssetId>,
    /// The same as `NAME@VERSION`.
    pub asset: Option<String>,
    /// The list that it addresses.
    pub list: Option<String>,
    /// The account that it uses.
    pub provider_account: Option<String>,
    /// The account that it fails over to.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: f64,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    pub quiet_time_seconds: f64,
    /// Its newest run, if it was deployed.
    pub run: Option<RunState>,
}

/// How a run stands.
#[derive(Debug, Clone, Serialize)]
pub struct RunState {
    /// Which one.
    #[serde(flatten)]
    pub run: Run,
    /// How far it is.
    pub progress: Progress,
    /// What it waits for, if its account's limits hold it up.
    pub waiting: Option<Waiting>,
}

/// How the phases of a campaign stand, in their order.
pub async fn status(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
) -> Result<Vec<PhaseState>, StoreError> {
    let rows = sqlx::query_file!("sql/campaign_phases.sql", tenant.0, campaign.0)
        .fetch_all(unnamed(&mut *connection))
        .await
        .map_err(StoreError::on("reading the campaign's phases"))?;
    let run_ids: Vec<RunId> = rows.iter().filter_map(|row| row.run_id).map(RunId).collect();
    let mut states = run_states(connection, tenant, &run_ids).await?;
    rows.into_iter()
        .map(|row| {
            Ok(PhaseState {
                id: PhaseId(row.id),
                phase: row.phase,
                kind: word(&row.kind)?,
                channel: row.channel.as_deref().map(word).transpose()?,
                status: word(&row.status)?,
                progress: row.progress,
                asset_id: row.asset_id.map(AssetId),
                asset: row.asset,
                list: row.list,
                provider_account: row.provider_account,
                failover_account: row.failover_account,
                failure_tolerance: row.failure_tolerance,
                scheduled_for: row.scheduled_for.map(jiff_sqlx::Timestamp::to_jiff),
                quiet_time_seconds: row.quiet_time_seconds,
                run: row.run_id.and_then(|id| states.remove(&RunId(id))),
            })
        })
        .collect()
}

/// A campaign as it stands at one moment of its history.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Which one.
    pub campaign: Campaign,
    /// The number of the last event that it includes.
    pub sequence: i64,
    /// When it was taken.
    pub taken_at: Timestamp,
    /// Whether a next phase is about to be started by itself.
    pub advancing: bool,
    /// Why a phase was not started by itself, if that happened last.
    pub not_advanced: Option<String>,
    /// Its phases, in order.
    pub phases: Vec<PhaseState>,
}

/// Takes a snapshot: states and sequence are those of one moment. `None` when the tenant has no such campaign.
pub async fn snapshot(
    pool: &Pool,
    tenant: TenantId,
    campaign: CampaignId,
) -> Result<Option<Snapshot>, StoreError> {
    let mut transaction = pool::begin_snapshot(pool, tenant).await?;
    let Some(found) = find(&mut transaction, tenant, &campaign.to_string()).await? else { return Ok(None) };
    let row = sqlx::query!(
        r#"
        select sequence,
               not_advanced,
               now() as "taken_at!: jiff_sqlx::Timestamp",
               exists (select
                         from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id
                          and phase.campaign_id = campaign.id
                          and phase.due = 'advance') as "advancing!"
          from execution.campaigns as campaign
         where tenant_id = $1
           and id = $2
        "#,
        tenant.0,
        found.id.0,
    )
    .fetch_one(unnamed(&mut transaction))
    .await
    .map_err(StoreError::on("reading the campaign"))?;
    let phases = status(&mut transaction, tenant, found.id).await?;
    pool::commit(transaction).await?;
    Ok(Some(Snapshot {
        campaign: found,
        sequence: row.sequence,
        taken_at: row.taken_at.to_jiff(),
        advancing: row.advancing,
        not_advanced: row.not_advanced,
        phases,
    }))
}

/// How runs stand, by their ids.
pub async fn run_states(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[RunId],
) -> Result<HashMap<RunId, RunState>, StoreError> {
    let runs = runs::read(&mut *connection, tenant, ids).await?;
    let mut progress = runs::progress(&mut *connection, tenant, ids).await?;
    let mut waiting = limits::waiting(connection, tenant, ids).await?;
    Ok(runs
        .into_iter()
        .filter_map(|run| {
            let progress = progress.remove(&run.id)?;
            let waiting = waiting.remove(&run.id);
            Some((run.id, RunState { run, progress, waiting }))
        })
        .collect())
}

/// A word that the database holds. One that this version does not know was written by a newer one.
pub(crate) fn word<T: FromStr<Err = NotAWord>>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|unknown: NotAWord| StoreError::Unfit(unknown.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str) -> NewPhase {
        NewPhase {
            phase: name.to_owned(),
            kind: PhaseKind::Delivery,
            channel: Some(Channel::Email),
            asset_id: Some(AssetId::new()),
            list: Some("customers".to_owned()),
            provider_account: Some("mail".to_owned()),
            failover_account: None,
            failure_tolerance: None,
            scheduled_for: None,
            quiet_time_seconds: None,
        }
    }

    fn refusal(phases: Vec<NewPhase>) -> String {
        let campaign = NewCampaign { name: "spring".to_owned(), auto_advance: true, phases };
        campaign.check().err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_whole_campaign_is_accepted() {
        let post = NewPhase { list: None, channel: Some(Channel::Social), ..phase("post") };
        let external = NewPhase {
            kind: PhaseKind::External,
            channel: None,
            asset_id: None,
            list: None,
            provider_account: None,
            ..phase("print")
        };
        assert_eq!(refusal(vec![phase("mail"), post, external]), "");
    }

    #[test]
    fn what_is_wrong_is_said_with_the_name_of_the_phase() {
        let cases = [
            (vec![], "a campaign has between 1 and 100 phases, not 0"),
            (vec![phase("mail"), phase("mail")], "two phases are called `mail`"),
            (vec![phase("First mail")], "`First mail` is not a name for a phase"),
            (vec![phase("")], "`` is not a name for a phase"),
            (vec![NewPhase { channel: None, ..phase("mail") }], "phase `mail`: `channel` is missing"),
            (vec![NewPhase { list: None, ..phase("mail") }], "phase `mail`: `list` is missing"),
            (
                vec![NewPhase { provider_account: None, ..phase("mail") }],
                "phase `mail`: `provider_account` is missing",
            ),
            (
                vec![NewPhase { failover_account: Some("mail".to_owned()), ..phase("mail") }],
                "phase `mail`: it fails over to the account that it uses anyway",
            ),
            (
                vec![NewPhase { failure_tolerance: Some(f64::NAN), ..phase("mail") }],
                "phase `mail`: failure_tolerance is a share between 0 and 1",
            ),
            (
                vec![NewPhase { quiet_time_seconds: Some(0), ..phase("mail") }],
                "phase `mail`: quiet_time_seconds must be at least 1",
            ),
            (
                vec![NewPhase { kind: PhaseKind::External, ..phase("print") }],
                "phase `print`: another service does an external phase, so `asset_id` does not belong here",
            ),
        ];
        for (phases, expected) in cases {
            let message = refusal(phases);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
