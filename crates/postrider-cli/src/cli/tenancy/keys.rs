//! `postrider keys`.

use std::process::ExitCode;

use clap::Subcommand;
use jiff::{SignedDuration, Timestamp};
use postrider_model::{ids::ApiKeyId, tenancy::Role};
use postrider_store::{postgres::pool, tenancy::keys};

use crate::cli::{ForTenant, actor, output, with_installation};
use crate::{config::Config, installation::Installation};

#[derive(Subcommand)]
pub enum KeysCommand {
    /// Create a key; prints its secret, which is shown only once
    Create {
        #[command(flatten)]
        of: ForTenant,
        /// The key's name, such as its purpose
        name: String,
        /// Give the key this role: viewer, operator or admin
        #[arg(long, default_value_t = Role::Viewer)]
        role: Role,
        /// Expire the key after this many days
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
        expires_in_days: Option<u32>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the keys of a tenant, without their secrets
    List {
        #[command(flatten)]
        of: ForTenant,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key, at once and for ever
    Revoke {
        #[command(flatten)]
        of: ForTenant,
        /// The key's id, as `keys list` shows it
        id: ApiKeyId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(command: KeysCommand, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| act(command, installation).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(command: KeysCommand, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    match command {
        KeysCommand::Create { of, name, role, expires_in_days, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let expires_at = expires_in_days
                .map(|days| Timestamp::now() + SignedDuration::from_hours(i64::from(days) * 24));
            let (id, secret) =
                keys::create(&mut transaction, tenant.id, &name, role, expires_at, &actor()).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&serde_json::json!({ "id": id.0, "key": secret.expose() }));
            }
            output::line(format_args!("id   {}", id.0))?;
            output::line(format_args!("key  {}", secret.expose()))?;
            message!("keep the key: it is shown only once");
        }
        KeysCommand::List { of, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            let keys = keys::list(&mut transaction, tenant.id).await?;
            if json {
                return output::json(&keys);
            }
            let rows = keys
                .into_iter()
                .map(|key| {
                    let state = match (key.revoked_at, key.expires_at) {
                        (Some(at), _) => format!("revoked {}", output::time(at)),
                        (None, Some(at)) if at <= Timestamp::now() => format!("expired {}", output::time(at)),
                        (None, Some(at)) => format!("until {}", output::time(at)),
                        (None, None) => "active".to_owned(),
                    };
                    let used = output::time_or_dash(key.last_used_at);
                    [key.id.0.to_string(), key.name, key.role, format!("{}…", key.hint), state, used]
                })
                .collect();
            output::table(
                ["id", "name", "role", "key", "state", "last used"],
                rows,
                "this tenant has no keys; `postrider keys create NAME` creates one",
            )?;
        }
        KeysCommand::Revoke { of, id, json } => {
            let tenant = of.find(&mut transaction, installation).await?;
            pool::act_as(&mut transaction, tenant.id).await?;
            let known = keys::revoke(&mut transaction, tenant.id, id, &actor()).await?;
            anyhow::ensure!(
                known,
                "tenant `{}` has no key {}; `postrider keys list` shows them",
                tenant.name,
                id.0
            );
            let revoked = keys::list(&mut transaction, tenant.id).await?.into_iter().find(|key| key.id == id);
            pool::commit(transaction).await?;
            if json {
                return output::json(&revoked);
            }
            message!("revoked {}", id.0);
        }
    }
    Ok(())
}
