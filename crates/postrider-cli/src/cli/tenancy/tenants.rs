//! `postrider tenants`.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;
use postrider_model::tenancy::Role;
use postrider_store::{
    postgres::{context, pool},
    tenancy::{keys, tenants},
};

use super::removal;
use crate::cli::{actor, output, with_installation};
use crate::{config::Config, installation::Installation};

#[derive(Subcommand)]
pub enum TenantsCommand {
    /// Create a tenant; prints its id and its first admin key, which is shown only once
    Create {
        /// The tenant's name, unique in the installation
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the statements that let a psql session of postrider_read or postrider_app act for a tenant
    ///
    /// The signature is valid until the key that signs tenants was rotated twice. Treat it like a password.
    Context {
        /// The tenant, by name or id
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the key that signs tenants
    ///
    /// Signatures under the previous key stay valid until the next rotation. Restart the API processes between two rotations.
    RotateContextKey {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a tenant with all its rows, after an export; asks for the name of the tenant
    ///
    /// The keys of the tenant stop working at once, and its send jobs are deleted first: a call in flight ends, and its result is not
    /// recorded. Pause its campaigns before. If the command stops half way, run it again.
    Remove {
        /// The tenant, by name or id
        name: String,
        /// Write every table of the tenant into this directory first, as one NDJSON file each; it must be new or empty
        #[arg(long, value_name = "DIR", required_unless_present = "no_export", conflicts_with = "no_export")]
        export: Option<PathBuf>,
        /// Remove the tenant without an export
        #[arg(long)]
        no_export: bool,
        /// Remove without a question; give the name of the tenant again
        #[arg(long, value_name = "NAME")]
        yes: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List all tenants
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(command: TenantsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| act(command, installation).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(command: TenantsCommand, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    if let TenantsCommand::Remove { name, export, yes, json, no_export: _ } = command {
        return removal::run(&pool, &name, export.as_deref(), yes.as_deref(), json).await;
    }
    let mut transaction = pool::begin(&pool).await?;
    match command {
        TenantsCommand::Remove { .. } => {}
        TenantsCommand::Create { name, json } => {
            let (tenant, workspace) = tenants::create(&mut transaction, &name, &actor()).await?;
            pool::act_as(&mut transaction, tenant).await?;
            let (_, secret) =
                keys::create(&mut transaction, tenant, "first", Role::Admin, None, &actor()).await?;
            pool::commit(transaction).await?;
            if json {
                output::json(&serde_json::json!({
                    "tenant_id": tenant.0, "workspace_id": workspace.0, "admin_key": secret.expose(),
                }))?;
            } else {
                output::line(format_args!("tenant_id     {}", tenant.0))?;
                output::line(format_args!("workspace_id  {}", workspace.0))?;
                output::line(format_args!("admin_key     {}", secret.expose()))?;
                message!("keep the key: it is shown only once");
            }
        }
        TenantsCommand::Context { name, json } => {
            let tenant = tenants::find(&mut transaction, &name).await?.id;
            let signature = context::key(&mut transaction).await?.sign(tenant);
            if json {
                return output::json(&serde_json::json!({ "tenant_id": tenant.0, "signature": signature }));
            }
            output::line(format_args!("set app.current_tenant_id = '{}';", tenant.0))?;
            output::line(format_args!("set app.tenant_signature = '{signature}';"))?;
            message!(
                "keep the signature secret: it lets every login of postrider_read and postrider_app act for this tenant"
            );
        }
        TenantsCommand::RotateContextKey { json } => {
            context::rotate(&mut transaction, &actor()).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&serde_json::json!({ "rotated": true }));
            }
            message!(
                "the key is rotated; signatures under the previous key are valid until the next rotation; restart the API \
                 processes before that"
            );
        }
        TenantsCommand::List { json } => {
            let tenants = tenants::list(&mut transaction).await?;
            if json {
                return output::json(&tenants);
            }
            let rows = tenants
                .into_iter()
                .map(|t| {
                    [t.name, t.id.0.to_string(), t.workspace_id.0.to_string(), output::time(t.created_at)]
                })
                .collect();
            output::table(
                ["name", "tenant id", "workspace id", "created"],
                rows,
                "there are no tenants; `postrider tenants create NAME` creates one",
            )?;
        }
    }
    Ok(())
}
