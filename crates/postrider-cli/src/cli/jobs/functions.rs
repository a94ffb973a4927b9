//! `postrider jobs function`: functions and their settings.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_engine::jobs::{BUILTINS, unknown};
use postrider_model::jobs::{
    RetryPolicy, SqlName, TIMEOUT_SECONDS_DEFAULT, Target, check_function_name, lock_key::Grain,
};
use postrider_providers::{check_secret, read_url};
use postrider_store::{
    jobs::{
        functions::{self, FunctionState, NewFunction},
        runs,
    },
    postgres::pool,
};
use secrecy::{ExposeSecret, SecretString};

use crate::{config::Config, installation::Installation, wire};
use {
    super::super::{ForTenant, actor, output, with_installation},
    crate::cli::tenancy::accounts::read_secret,
};

#[derive(Subcommand)]
pub enum FunctionCommand {
    /// List functions, without secrets
    List {
        #[command(flatten)]
        of: ForTenant,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a function, or replace its settings
    ///
    /// Requests to a URL are signed. The secret is read from a file or a variable; otherwise a new one is generated and printed this once.
    Put(PutArgs),
    /// Remove a function; its waiting runs fail
    Remove {
        #[command(flatten)]
        of: ForTenant,
        /// The function's name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct PutArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The function's name, which is a part of lock keys
    #[arg(value_parser = name)]
    name: String,
    #[command(flatten)]
    target: TargetArgs,
    /// Read the secret, `whsec_…`, from this file
    #[arg(long, value_name = "FILE", conflicts_with = "secret_env")]
    secret_file: Option<PathBuf>,
    /// Read the secret from this variable of the environment
    #[arg(long, value_name = "VARIABLE")]
    secret_env: Option<String>,
    /// Run at most once per day, hour or 5min [default: day, or the own grain of a function of Postrider]
    #[arg(long)]
    grain: Option<Grain>,
    /// Fail an attempt after this time
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT_SECONDS_DEFAULT, value_parser = clap::value_parser!(u32).range(1..=900))]
    timeout: u32,
    #[command(flatten)]
    retry: RetryPolicyArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// Call the endpoint at this URL
    #[arg(long, value_name = "URL")]
    http: Option<String>,
    /// Call this function in the database, which takes and returns jsonb
    #[arg(long, value_name = "SCHEMA.FUNCTION")]
    sql: Option<SqlName>,
    /// Run this Rust function of Postrider or of a running process of your application
    #[arg(long, value_name = "NAME")]
    builtin: Option<String>,
}

#[derive(Args)]
struct RetryPolicyArgs {
    /// Retry a failed run this many times
    #[arg(long, value_name = "N", default_value_t = RetryPolicy::default().max_retries, value_parser = clap::value_parser!(u32).range(0..=100))]
    max_retries: u32,
    /// Wait this many milliseconds before the first retry
    #[arg(long, value_name = "N", default_value_t = RetryPolicy::default().initial_delay_ms)]
    initial_delay_ms: u32,
    /// Multiply the backoff by this factor after each retry
    #[arg(long, value_name = "FACTOR", default_value_t = RetryPolicy::default().backoff_multiplier)]
    backoff_multiplier: f64,
    /// Limit the backoff to this many milliseconds
    #[arg(long, value_name = "N", default_value_t = RetryPolicy::default().max_delay_ms)]
    max_delay_ms: u32,
}

fn name(text: &str) -> Result<String, String> {
    check_function_name(text).map(|()| text.to_owned())
}

/// Arguments of `put` that passed all checks that need no database.
struct CheckedInput {
    target: Target,
    grain: Grain,
    retry: RetryPolicy,
    secret: Option<SecretString>,
}

pub async fn run(command: FunctionCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        FunctionCommand::List { of, json } => {
            with_installation(config, async |installation| list(&of, json, installation).await).await
        }
        FunctionCommand::Put(args) => {
            // The input is checked before the database is opened.
            let input = check(&args, config)?;
            with_installation(config, async |installation| put(&args, &input, installation, config).await)
                .await
        }
        FunctionCommand::Remove { of, name, json } => {
            with_installation(config, async |installation| remove(&of, &name, json, installation).await).await
        }
    }
}

fn check(args: &PutArgs, config: &Config) -> anyhow::Result<CheckedInput> {
    let RetryPolicyArgs { max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms } = args.retry;
    let retry = RetryPolicy { max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms };
    if let Some((field, problem)) = retry.problem() {
        anyhow::bail!("--{} {problem}", field.replace('_', "-"));
    }
    let target = match &args.target {
        TargetArgs { http: Some(url), .. } => {
            read_url(url, &wire::outbound(config)).map_err(|refused| anyhow::anyhow!("--http: {refused}"))?;
            Target::Http(url.clone())
        }
        TargetArgs { sql: Some(name), .. } => Target::Sql(name.clone()),
        TargetArgs { builtin, .. } => Target::Builtin(builtin.clone().unwrap_or_default()),
    };
    let own_grain = match &target {
        Target::Builtin(name) => {
            BUILTINS.iter().find(|builtin| builtin.name == *name).map(|builtin| builtin.grain)
        }
        _ => None,
    };
    let grain = args.grain.or(own_grain).unwrap_or(Grain::Day);
    Ok(CheckedInput { target, grain, retry, secret: secret(args)? })
}

/// The secret from the file or the variable, if one is named.
fn secret(args: &PutArgs) -> anyhow::Result<Option<SecretString>> {
    const OR_GENERATE: &str = "leave the option out to generate a secret";
    let secret: Option<SecretString> = match (&args.secret_file, &args.secret_env) {
        (Some(file), _) => Some(read_secret(Some(file))?)
            .map(|secret| {
                secret.with_context(|| format!("the secret in {} is empty; {OR_GENERATE}", file.display()))
            })
            .transpose()?,
        (None, Some(variable)) => {
            let secret = std::env::var(variable).unwrap_or_default();
            anyhow::ensure!(
                !secret.is_empty(),
                "the variable {variable} is not set, or empty; {OR_GENERATE}"
            );
            Some(secret.into())
        }
        (None, None) => None,
    };
    anyhow::ensure!(
        secret.is_none() || args.target.http.is_some(),
        "only requests to a URL are signed with a secret; leave the secret out, or give --http"
    );
    if let Some(secret) = &secret {
        check_secret(secret).map_err(|problem| anyhow::anyhow!("the secret {problem}; {OR_GENERATE}"))?;
    }
    Ok(secret)
}

async fn put(
    args: &PutArgs,
    input: &CheckedInput,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    // Only a function behind a URL has a secret, which is sealed.
    let key = match input.target {
        Target::Http(_) => Some(installation.checked_master_key(config, &mut transaction).await?),
        Target::Sql(_) | Target::Builtin(_) => None,
    };
    if let Target::Sql(name) = &input.target {
        let checked = runs::check_sql_function(&mut transaction, name, &config.jobs.sql_schemas).await?;
        checked.map_err(|problem| anyhow::anyhow!("--sql: {problem}"))?;
    }
    if let Target::Builtin(name) = &input.target
        && let Some(problem) = unknown(name, &functions::provided(&mut transaction).await?)
    {
        anyhow::bail!("--builtin: {problem}");
    }
    let function = NewFunction {
        name: &args.name,
        target: &input.target,
        grain: input.grain,
        timeout_seconds: args.timeout,
        retry: input.retry,
        secret: input.secret.as_ref(),
    };
    let put = functions::put(&mut transaction, key.as_ref(), tenant.id, &function, &actor()).await?;
    let state = functions::find(&mut transaction, tenant.id, &args.name).await?;
    pool::commit(transaction).await?;
    let secret = put.new_secret.as_ref().map(ExposeSecret::expose_secret);
    if args.json {
        return output::json(
            &serde_json::json!({ "function": state, "is_new": put.is_new, "secret": secret }),
        );
    }
    let how = if put.is_new { "new" } else { "set" };
    message!("`{}` is {how}; `{}` runs it", args.name, args.of.command(&["jobs", "invoke", &args.name]));
    if let Some(secret) = secret {
        output::line(secret)?;
        message!("keep the secret, which signs the requests: it is shown only once");
    }
    Ok(())
}

async fn list(of: &ForTenant, json: bool, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let functions = functions::page(&mut transaction, tenant.id, None, i64::MAX).await?;
    if json {
        return output::json(&functions);
    }
    // The functions of Postrider are listed before their first use, too.
    let unused = BUILTINS.iter().filter(|builtin| functions.iter().all(|known| known.name != builtin.name));
    let unused = unused.map(|builtin| {
        let ready = || "comes with Postrider".to_owned();
        [
            builtin.name.to_owned(),
            ready(),
            builtin.grain.to_string(),
            "-".to_owned(),
            "-".to_owned(),
            "-".to_owned(),
        ]
    });
    let provided = functions::provided(&mut transaction).await?;
    let provided = provided.into_iter().filter(|name| functions.iter().all(|known| known.name != *name));
    let provided = provided.map(|name| {
        let command = of.command(&["jobs", "function", "put", &name, "--builtin", &name]);
        let dash = || "-".to_owned();
        [name, format!("provided by a running process; `{command}` sets it"), dash(), dash(), dash(), dash()]
    });
    let rows = functions.iter().map(row).chain(unused).chain(provided).collect();
    output::table(["function", "target", "once per", "timeout", "retries", "set"], rows, "")
}

fn row(function: &FunctionState) -> [String; 6] {
    let RetryPolicy { max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms } = function.retry;
    let retries = match max_retries {
        0 => "none".to_owned(),
        most => format!(
            "{most}, after {initial_delay_ms} ms, then {backoff_multiplier} times as long, {max_delay_ms} ms at most"
        ),
    };
    [
        function.name.clone(),
        match &function.target {
            Target::Http(url) => url.clone(),
            Target::Sql(name) => format!("sql {name}"),
            Target::Builtin(name) => format!("builtin {name}"),
        },
        function.grain.to_string(),
        format!("{} s", function.timeout_seconds),
        retries,
        output::time(function.updated_at),
    ]
}

async fn remove(of: &ForTenant, name: &str, json: bool, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let removed = functions::find(&mut transaction, tenant.id, name).await?;
    let is_known = functions::remove(&mut transaction, tenant.id, name, &actor()).await?;
    anyhow::ensure!(
        is_known,
        "tenant `{}` has no function `{name}`; `{}` shows them",
        tenant.name,
        of.command(&["jobs", "function", "list"])
    );
    pool::commit(transaction).await?;
    if json {
        return output::json(&removed);
    }
    message!("removed `{name}`; its runs stay in `{}`", of.command(&["jobs", "list"]));
    Ok(())
}
