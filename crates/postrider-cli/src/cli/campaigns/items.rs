//! `postrider campaign export` and `postrider campaign failures`: the items of a run.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use postrider_engine::campaigns::export::Format;
use postrider_model::{
    campaigns::ItemStatus,
    ids::{RunId, TenantId},
};
use postrider_store::{
    PgConnection,
    campaigns::{
        failures,
        items::{self, Filter, State},
        runs,
    },
    postgres::pool,
};

use crate::{
    cli::{ForTenant, output, with_installation},
    config::Config,
};

/// Items that are read at a time.
const PAGE: i64 = 1_000;

#[derive(Args)]
pub struct ExportArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The run, by id
    run: RunId,
    /// Write this format; a text that a spreadsheet would execute begins with an apostrophe in CSV
    #[arg(long, value_enum, default_value = "csv")]
    format: FormatArg,
    /// Write only items in this state
    #[arg(long, value_enum, value_name = "STATE")]
    status: Option<StateArg>,
}

#[derive(Args)]
pub struct FailuresArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The run, by id
    run: RunId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatArg {
    Csv,
    Ndjson,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum StateArg {
    Queued,
    Sent,
    Called,
    Posted,
    Failed,
    Skipped,
    InDoubt,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Csv => Self::Csv,
            FormatArg::Ndjson => Self::Ndjson,
        }
    }
}

impl From<StateArg> for State {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Queued => Self::Is(ItemStatus::Queued),
            StateArg::Sent => Self::Is(ItemStatus::Sent),
            StateArg::Called => Self::Is(ItemStatus::Called),
            StateArg::Posted => Self::Is(ItemStatus::Posted),
            StateArg::Failed => Self::Is(ItemStatus::Failed),
            StateArg::Skipped => Self::Is(ItemStatus::Skipped),
            StateArg::InDoubt => Self::InDoubt,
        }
    }
}

pub async fn export(args: ExportArgs, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        find(&mut transaction, tenant.id, args.run).await?;
        pool::rollback(transaction).await?;
        let format = Format::from(args.format);
        let filter = Filter { state: args.status.map(State::from), ..Filter::default() };
        output::text(&format.head())?;
        let mut after = None;
        loop {
            // Each page has a transaction of its own: the reader of stdout may be slow.
            let mut transaction = pool::begin_as(&pool, tenant.id).await?;
            let page = items::page(&mut transaction, tenant.id, args.run, &filter, after, PAGE).await?;
            pool::commit(transaction).await?;
            output::text(&format.lines(&page))?;
            let is_full = i64::try_from(page.len()).is_ok_and(|count| count == PAGE);
            after = page.last().filter(|_| is_full).map(|last| (last.job_position, last.id));
            if after.is_none() {
                return Ok(ExitCode::SUCCESS);
            }
        }
    })
    .await
}

pub async fn failures(args: FailuresArgs, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        find(&mut transaction, tenant.id, args.run).await?;
        let found = failures::list(&mut transaction, tenant.id, args.run).await.map_err(|error| {
            if error.is_timeout() {
                anyhow::anyhow!(
                    "the run has too many failed items to group them within 5 s; `postrider campaign export {} --status failed` \
                     writes all of them",
                    args.run
                )
            } else {
                error.into()
            }
        })?;
        pool::commit(transaction).await?;
        if args.json {
            output::json(&found)?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows = found.into_iter().map(|failure| {
            let examples: Vec<String> = failure.item_ids.iter().map(ToString::to_string).collect();
            [failure.count.to_string(), failure.error, examples.join(" ")]
        });
        output::table(["items", "error", "examples"], rows.collect(), "no item of the run failed")?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn find(connection: &mut PgConnection, tenant: TenantId, run: RunId) -> anyhow::Result<()> {
    let found = runs::find(connection, tenant, run).await?;
    anyhow::ensure!(
        found.is_some(),
        "there is no run `{run}`; `postrider campaign status CAMPAIGN` shows the newest run of each phase"
    );
    Ok(())
}
