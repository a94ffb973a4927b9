//! `postrider dashboard`: prints an address that signs in to the dashboard once.

use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use postrider_model::{
    ids::{ApiKeyId, TenantId},
    tenancy::Role,
};
use postrider_store::{
    PgConnection,
    postgres::pool,
    tenancy::{keys, sessions},
};
use serde::Serialize;
use url::Url;

use crate::cli::{ForTenant, actor, output, with_installation};
use crate::{config::Config, installation::Installation};

#[derive(Args)]
pub struct DashboardArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Sign in with this role: viewer, operator or admin
    #[arg(long, default_value_t = Role::Admin)]
    role: Role,
    /// Use this address of the server [default: the running server of a private installation, else http.listen]
    #[arg(long, value_name = "URL")]
    url: Option<Url>,
    /// Open the address in a browser
    #[arg(long)]
    open: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An address that signs in once.
#[derive(Serialize)]
struct Entrance {
    url: String,
    expires_at: Timestamp,
    tenant_id: TenantId,
    key_id: ApiKeyId,
    role: Role,
}

pub async fn run(args: DashboardArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let entrance =
        with_installation(config, async |installation| enter(&args, config, installation).await).await?;
    if args.open {
        open(&entrance.url)?;
    }
    if args.json {
        output::json(&entrance)?;
    } else {
        output::line(&entrance.url)?;
        message!("this address signs in once, within one minute; for another one, run the command again");
    }
    Ok(ExitCode::SUCCESS)
}

async fn enter(
    args: &DashboardArgs,
    config: &Config,
    installation: &Installation,
) -> anyhow::Result<Entrance> {
    let server = address(args.url.as_ref(), config, installation)?;
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    let key_id = key(&mut transaction, tenant.id, args.role).await?;
    let actor = actor();
    // The person who runs the command is the one who signs in.
    let name = actor.strip_prefix("cli:").and_then(|user| user.parse().ok());
    let (code, expires_at) = sessions::make_code(&mut transaction, tenant.id, key_id, name, &actor).await?;
    pool::commit(transaction).await?;
    // Browsers send the part after `#` to no server, so no log of a proxy has the code.
    let url = format!("{server}/ui/enter#code={}", code.expose());
    Ok(Entrance { url, expires_at, tenant_id: tenant.id, key_id, role: args.role })
}

/// The address of the server, without a slash at its end.
fn address(given: Option<&Url>, config: &Config, installation: &Installation) -> anyhow::Result<String> {
    let url = match given {
        Some(url) => url.to_string(),
        None if installation.is_private() => installation
            .server_url()
            .context("no server of this installation is running; start one with `postrider serve`")?
            .to_string(),
        None => {
            let mut listen = config.http.listen;
            anyhow::ensure!(
                listen.port() != 0,
                "http.listen has port 0, so the address of the server is not known; name it with --url"
            );
            if listen.ip().is_unspecified() {
                listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            format!("http://{listen}")
        }
    };
    Ok(url.trim_end_matches('/').to_owned())
}

/// The key for which the sessions of this command act. One key per role serves all of them: revoking it ends them.
async fn key(connection: &mut PgConnection, tenant: TenantId, role: Role) -> anyhow::Result<ApiKeyId> {
    let name = format!("dashboard {role}");
    let known = keys::list(connection, tenant).await?.into_iter().find(|key| {
        key.name == name && key.role == role.as_str() && key.revoked_at.is_none() && key.expires_at.is_none()
    });
    if let Some(key) = known {
        return Ok(key.id);
    }
    // The secret is dropped: only sessions use this key.
    let (id, _) = keys::create(connection, tenant, &name, role, None, &actor()).await?;
    Ok(id)
}

fn open(url: &str) -> anyhow::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let opened = Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {program}; leave --open out, and open the address yourself"))?;
    anyhow::ensure!(
        opened.success(),
        "{program} could not open a browser; leave --open out, and open the address yourself"
    );
    Ok(())
}
