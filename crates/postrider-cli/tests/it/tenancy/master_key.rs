//! The master key: a role that needs it does not start without it, a wrong one is refused at start, and one command changes it.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, process::Command};

use postrider_model::{
    ids::{TenantId, WorkspaceId},
    seal::{MasterKey, key_id},
};
use postrider_store::{
    postgres::pool,
    tenancy::{
        accounts::{self, NewAccount},
        master_key::{self, Standing},
    },
};
use sqlx::PgPool;

use crate::{
    sql::{execute, number, refusal, someone_waits, texts},
    world::{MASTER_KEY, Output, Process, Server, Sim, World, eventually, postrider, run, run_with_input},
};

const OTHER_KEY: &str = "bm90IHRoZSBrZXkgb2YgdGhlIG90aGVycywgYnV0IDM=";
const DIFFERS: &str = "the master key differs from the one that this installation was sealed with";
const TENANT: &str = "acme";

/// Every value that is sealed, as the row it is in.
const SEALED: &str = "
    select sealed_secret from tenancy.provider_accounts
    union all select sealed_secret from channels.channel_executors where sealed_secret is not null
    union all select sealed_secret from jobs.functions where sealed_secret is not null";

fn with_key(world: &World, key: Option<&str>, args: &[&str]) -> Command {
    let mut command = postrider();
    for (setting, role) in
        [("ADMIN_URL", "postgres"), ("URL", "postrider_worker"), ("APP_URL", "postrider_app")]
    {
        command.env(format!("POSTRIDER_DATABASE__{setting}"), world.url(role));
    }
    command.args(args);
    command.envs(key.map(|key| ("POSTRIDER_MASTER_KEY", key)));
    command
}

fn succeeded(output: Output) -> anyhow::Result<Output> {
    anyhow::ensure!(output.code == 0, "{}{}", output.stdout, output.stderr);
    Ok(output)
}

fn assert_refused(output: &Output, says: &str) {
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
    assert!(output.stderr.contains(says), "`{says}` is not in: {}", output.stderr);
}

fn add(world: &World, key: &str, name: &str) -> anyhow::Result<Output> {
    let settings = r#"{"url": "https://a.example"}"#;
    let args = ["accounts", "add", name, "--tenant", TENANT, "--provider", "sim", "--settings", settings];
    run_with_input(&mut with_key(world, Some(key), &args), "canary-secret")
}

/// A tenant with a sealed secret of every kind, under this key.
async fn sealed(world: &World, key: &str) -> anyhow::Result<PgPool> {
    succeeded(run(&mut with_key(world, None, &["tenants", "create", TENANT]))?)?;
    succeeded(add(world, key, "first")?)?;
    let function = ["jobs", "function", "put", "f", "--tenant", TENANT, "--http", "https://a.example"];
    succeeded(run(&mut with_key(world, Some(key), &function))?)?;
    let executor = ["channels", "executor", "set", "--tenant", TENANT, "--url", "https://a.example"];
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    succeeded(run_with_input(&mut with_key(world, Some(key), &executor), secret)?)?;
    world.client("postgres").await
}

/// How many sealed values there are, and whether all of them are sealed under this key.
async fn all_under(admin: &PgPool, key: &str) -> anyhow::Result<usize> {
    let values: Vec<Vec<u8>> = sqlx::query_scalar(SEALED).fetch_all(admin).await?;
    let id = key.parse::<MasterKey>()?.id();
    anyhow::ensure!(
        values.iter().all(|value| key_id(value) == Some(id)),
        "some are sealed under another key"
    );
    Ok(values.len())
}

fn serve(world: &World, key: Option<&str>, roles: &[&str]) -> Command {
    let mut command = postrider();
    command
        .env("POSTRIDER_DATABASE__URL", world.url("postrider_worker"))
        .env("POSTRIDER_DATABASE__APP_URL", world.url("postrider_app"))
        .envs(key.map(|key| ("POSTRIDER_MASTER_KEY", key)))
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(roles);
    command
}

/// A sink of a relay, as the environment sets it.
fn sink(sim: &Sim) -> [(&'static str, String); 4] {
    [
        ("POSTRIDER_OUTBOUND__ALLOW_PRIVATE", "true".to_owned()),
        ("POSTRIDER_RELAY__SINKS__CRM__KIND", "http".to_owned()),
        ("POSTRIDER_RELAY__SINKS__CRM__URL", format!("{}/hooks/crm", sim.http_url)),
        ("POSTRIDER_RELAY__SINKS__CRM__SECRETS", r#"["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]"#.to_owned()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_needs_the_master_key_does_not_start_without_it() -> anyhow::Result<()> {
    let world = World::new().await?;
    for roles in [
        &[][..],
        &["--roles", "api"],
        &["--roles", "campaigns"],
        &["--roles", "resolver"],
        &["--roles", "dispatcher"],
        &["--roles", "scheduler"],
    ] {
        let refused = run(&mut serve(&world, None, roles))?;
        assert_refused(&refused, "none is set; make one with `postrider master-key generate`");
        assert!(refused.stderr.contains("set POSTRIDER_MASTER_KEY to it"), "{}", refused.stderr);
        assert!(refused.stderr.contains("name roles that need none with --roles"), "{}", refused.stderr);
    }
    let sim = Sim::start(&[])?;
    let mut relay = serve(&world, None, &["--roles", "relay"]);
    let relay = Process::start(relay.envs(sink(&sim)))?;
    relay.wait_for_line("postrider is serving at ")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_fails_where_a_role_would_not_start_for_want_of_the_master_key() -> anyhow::Result<()> {
    let world = World::new().await?;
    let without = run(&mut with_key(&world, None, &["doctor"]))?;
    assert_eq!(without.code, 1, "{}", without.stdout);
    assert!(without.stdout.contains("FAIL  master key"), "{}", without.stdout);
    assert!(without.stdout.contains("→ make one with `postrider master-key generate`"), "{}", without.stdout);
    let mut relay = with_key(&world, None, &["doctor", "--roles", "relay"]);
    succeeded(run(relay.envs(sink(&Sim::start(&[])?)))?)?;
    succeeded(run(&mut with_key(&world, Some(MASTER_KEY), &["doctor"]))?)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_master_key_is_refused_by_serve_doctor_and_every_command_that_seals() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    assert_refused(&run(&mut serve(&world, Some(OTHER_KEY), &[]))?, DIFFERS);
    assert_refused(&add(&world, OTHER_KEY, "second")?, DIFFERS);
    let rotate = ["accounts", "rotate", "first", "--tenant", TENANT];
    assert_refused(&run_with_input(&mut with_key(&world, Some(OTHER_KEY), &rotate), "new-secret")?, DIFFERS);
    let doctor = run(&mut with_key(&world, Some(OTHER_KEY), &["doctor"]))?;
    assert_eq!(doctor.code, 1);
    assert!(doctor.stdout.contains(&format!("FAIL  master key           {DIFFERS}")), "{}", doctor.stdout);
    assert_eq!(all_under(&admin, MASTER_KEY).await?, 3);

    let right = Process::start(&mut serve(&world, Some(MASTER_KEY), &[]))?;
    right.wait_for_line("postrider is serving at ")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_registers_its_key_before_any_secret_is_sealed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let first = Process::start(&mut serve(&world, Some(MASTER_KEY), &[]))?;
    first.wait_for_line("postrider is serving at ")?;
    assert_refused(&run(&mut serve(&world, Some(OTHER_KEY), &["--roles", "scheduler"]))?, DIFFERS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_compared_with_secrets_that_were_sealed_before_keys_were_registered() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    // As an older version has left it, with one account that was sealed by mistake under another key.
    execute(&admin, "delete from tenancy.master_key").await?;
    let strange = OTHER_KEY.parse::<MasterKey>()?.seal_check()?;
    sqlx::query("insert into jobs.functions (id, tenant_id, name, kind, target, sealed_secret)
                 select gen_random_uuid(), id, 'strange', 'http', 'https://a.example', $1 from tenancy.tenants where name <> 'system'")
        .bind(strange)
        .execute(&admin)
        .await?;
    assert_refused(&run(&mut serve(&world, Some(OTHER_KEY), &[]))?, DIFFERS);
    assert_eq!(number(&admin, "select count(*) from tenancy.master_key").await?, 0);
    let server = Process::start(&mut serve(&world, Some(MASTER_KEY), &[]))?;
    server.wait_for_line("postrider is serving at ")?;
    assert_eq!(number(&admin, "select count(*) from tenancy.master_key").await?, 1);
    let doctor = run(&mut with_key(&world, Some(MASTER_KEY), &["doctor"]))?;
    assert!(doctor.stdout.contains("1 secrets are sealed under another key"), "{}", doctor.stdout);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_seals_every_secret_anew_beside_processes_that_have_both_keys() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    let new = succeeded(run(postrider().args(["master-key", "generate"]))?)?.stdout.trim().to_owned();
    let times =
        "select concat_ws(' ', updated_at, secret_set_at) from tenancy.provider_accounts where name = 'first'
                  union all select updated_at::text from jobs.functions";
    let before = texts(&admin, times).await?;

    let mut both = serve(&world, Some(&new), &[]);
    let process = Process::start(both.env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY))?;
    process.wait_for_line("`postrider master-key rotate` seals them")?;
    process.wait_for_line("postrider is serving at ")?;
    // A process with both keys seals under the one in use.
    let mut adding =
        with_key(&world, Some(&new), &["accounts", "add", "second", "--tenant", TENANT, "--provider", "sim"]);
    adding
        .args(["--settings", r#"{"url": "https://a.example"}"#])
        .env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY);
    succeeded(run_with_input(&mut adding, "canary-secret")?)?;
    assert_eq!(all_under(&admin, MASTER_KEY).await?, 4);

    let mut rotate = with_key(&world, Some(&new), &["master-key", "rotate", "--json"]);
    rotate.env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY);
    let rotated: serde_json::Value = serde_json::from_str(&succeeded(run(&mut rotate)?)?.stdout)?;
    assert_eq!(rotated, serde_json::json!({ "accounts": 2, "executors": 1, "functions": 1 }));
    assert_eq!(all_under(&admin, &new).await?, 4);
    assert_eq!(texts(&admin, times).await?, before, "a secret that is sealed anew is not a new secret");
    let check = ["accounts", "check", "--tenant", TENANT];
    succeeded(run(&mut with_key(&world, Some(&new), &check))?)?;
    assert_refused(&run(&mut with_key(&world, Some(MASTER_KEY), &check))?, "sealed under another master key");
    assert_refused(&run(&mut serve(&world, Some(MASTER_KEY), &[]))?, DIFFERS);
    let audited =
        "select count(*) from tenancy.audit_log where action = 'master_key.rotated' and actor like 'cli:%'";
    assert_eq!(number(&admin, audited).await?, 1);
    // Again is harmless, and the old key is not needed any more.
    succeeded(run(&mut rotate)?)?;
    assert_eq!(all_under(&admin, &new).await?, 4);
    succeeded(run(&mut with_key(&world, Some(&new), &["doctor"]))?)?;
    process.signal("TERM")?;
    let mut process = process;
    anyhow::ensure!(process.wait()?.success(), "{}", process.lines().join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_without_both_keys_or_with_the_wrong_ones_changes_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    let new = MasterKey::generate()?.to_base64();
    assert_refused(
        &run(&mut with_key(&world, Some(&new), &["master-key", "rotate"]))?,
        "master_key_previous is not set; set master_key to the new key",
    );
    let mut wrong = with_key(&world, Some(&new), &["master-key", "rotate"]);
    assert_refused(&run(wrong.env("POSTRIDER_MASTER_KEY_PREVIOUS", OTHER_KEY))?, DIFFERS);
    let mut only_previous = with_key(&world, None, &["master-key", "rotate"]);
    assert_refused(
        &run(only_previous.env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY))?,
        "master_key_previous is set, and master_key is not",
    );
    assert_eq!(all_under(&admin, MASTER_KEY).await?, 3);
    Ok(())
}

#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_that_dies_has_changed_everything_or_nothing_and_can_be_repeated() -> anyhow::Result<()> {
    for (point, now) in
        postrider_store::postgres::crash::MASTER_KEY_POINTS.iter().zip([MASTER_KEY, OTHER_KEY])
    {
        let world = World::new().await?;
        let admin = sealed(&world, MASTER_KEY).await?;
        let mut rotate = with_key(&world, Some(OTHER_KEY), &["master-key", "rotate"]);
        rotate.env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY);
        assert_eq!(run(rotate.env("CRASH_AT", point))?.code, -1, "{point}");
        assert_eq!(all_under(&admin, now).await?, 3, "{point}");
        let mut serving = serve(&world, Some(now), &[]);
        Process::start(&mut serving)?.wait_for_line("postrider is serving at ")?;
        succeeded(run(rotate.env_remove("CRASH_AT"))?)?;
        assert_eq!(all_under(&admin, OTHER_KEY).await?, 3, "{point}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_is_added_during_a_rotation_is_sealed_anew_as_well() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    let (tenant, workspace): (uuid::Uuid, uuid::Uuid) =
        sqlx::query_as("select tenant_id, id from tenancy.workspaces").fetch_one(&admin).await?;
    let (app, owner) = (world.pool("postrider_app").await?, world.pool("postgres").await?);
    let (secret, settings) = ("canary-secret".into(), serde_json::json!({}));
    let account = |name| NewAccount {
        tenant: TenantId(tenant),
        workspace: WorkspaceId(workspace),
        name,
        provider: "sim",
        settings: &settings,
        secret: &secret,
    };
    let old: MasterKey = MASTER_KEY.parse()?;
    let both = OTHER_KEY.parse::<MasterKey>()?.with_previous(old.clone());

    // One that began before waits for nothing, and the rotation waits for it.
    let mut adding = pool::begin_as(&app, TenantId(tenant)).await?;
    accounts::create(&mut adding, &old, &account("before"), "a test").await?;
    let rotating = tokio::spawn({
        let both = both.clone();
        async move {
            let mut transaction = pool::begin(&owner).await?;
            let rotated = master_key::rotate(&mut transaction, &both, "a test").await?;
            anyhow::Ok((transaction, rotated))
        }
    });
    someone_waits(&admin).await?;
    pool::commit(adding).await?;
    let (rotation, rotated) = rotating.await??;
    assert_eq!(rotated.accounts, 2);

    // One that begins before the rotation's commit waits for it, and then seals under the new key.
    let late = tokio::spawn({
        let (app, both, tenant) = (app.clone(), both.clone(), TenantId(tenant));
        let (secret, settings) = ("canary-secret".into(), serde_json::json!({}));
        async move {
            let mut transaction = pool::begin_as(&app, tenant).await?;
            let workspace = WorkspaceId(workspace);
            let account = NewAccount {
                tenant,
                workspace,
                name: "late",
                provider: "sim",
                settings: &settings,
                secret: &secret,
            };
            accounts::create(&mut transaction, &both, &account, "a test").await?;
            anyhow::Ok(pool::commit(transaction).await?)
        }
    });
    someone_waits(&admin).await?;
    pool::commit(rotation).await?;
    late.await??;
    assert_eq!(all_under(&admin, OTHER_KEY).await?, 5);

    // A process that was left with the old key can store nothing.
    let mut left = pool::begin_as(&app, TenantId(tenant)).await?;
    let refused = accounts::create(&mut left, &old, &account("left"), "a test").await.unwrap_err();
    assert!(refused.to_string().contains(DIFFERS), "{refused}");
    let mut left = pool::begin(&app).await?;
    let raw = sqlx::query("update tenancy.provider_accounts set sealed_secret = $1").bind(old.seal_check()?);
    let refused = refusal(raw.execute(&admin).await)?;
    assert!(refused.message.contains("sealed under another master key"), "{refused:?}");
    assert_eq!(master_key::verify(&mut left, &both).await?, Standing::Current);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_left_with_the_old_key_ends_and_says_why() -> anyhow::Result<()> {
    let world = World::new().await?;
    sealed(&world, MASTER_KEY).await?;
    let mut server = Server::start(&world, "api,campaigns,resolver,dispatcher,scheduler", "")?;
    let mut rotate = with_key(&world, Some(OTHER_KEY), &["master-key", "rotate"]);
    succeeded(run(rotate.env("POSTRIDER_MASTER_KEY_PREVIOUS", MASTER_KEY))?)?;
    let status = tokio::task::block_in_place(|| server.process.wait())?;
    let lines = server.process.lines().join("\n");
    assert_eq!(status.code(), Some(1), "{lines}");
    assert!(lines.contains("the master key was changed while this process ran"), "{lines}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_key_is_replaced_and_secrets_are_set_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    sealed(&world, MASTER_KEY).await?;
    let replace = ["master-key", "replace-lost"];
    assert_refused(&run(&mut with_key(&world, Some(OTHER_KEY), &replace))?, "add --yes");
    let replaced = run(with_key(&world, Some(OTHER_KEY), &replace).arg("--yes"))?;
    assert!(replaced.stderr.contains("3 secrets do not open under it"), "{}", replaced.stderr);
    let doctor = run(&mut with_key(&world, Some(OTHER_KEY), &["doctor"]))?;
    assert!(doctor.stdout.contains("3 secrets are sealed under another key"), "{}", doctor.stdout);
    let rotate = ["accounts", "rotate", "first", "--tenant", TENANT];
    succeeded(run_with_input(&mut with_key(&world, Some(OTHER_KEY), &rotate), "new-secret")?)?;
    succeeded(run(&mut with_key(&world, Some(OTHER_KEY), &["accounts", "check", "--tenant", TENANT]))?)?;
    assert_refused(&add(&world, MASTER_KEY, "second")?, DIFFERS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_read_from_a_file_that_only_its_owner_can_read() -> anyhow::Result<()> {
    let world = World::new().await?;
    let home = tempfile::tempdir()?;
    let file = home.path().join("master_key");
    let path = file.to_string_lossy().into_owned();
    succeeded(run(postrider().args(["master-key", "generate", "--file", &path]))?)?;
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    assert_refused(
        &run(postrider().args(["master-key", "generate", "--file", &path]))?,
        "cannot write the key",
    );
    let serve = || {
        let mut command = serve(&world, None, &[]);
        command.env("POSTRIDER_MASTER_KEY_FILE", &file);
        command
    };
    Process::start(&mut serve())?.wait_for_line("postrider is serving at ")?;

    let open = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode));
    open(0o640)?;
    assert_refused(&run(&mut serve())?, "can be read by others (mode 640); run `chmod 600` on it");
    // systemd lets the user of a service in by an access list, which the mode shows as rights of the group.
    let credential = serve().env("CREDENTIALS_DIRECTORY", home.path()).spawn_serving()?;
    drop(credential);
    open(0o644)?;
    assert_refused(&run(serve().env("CREDENTIALS_DIRECTORY", home.path()))?, "can be read by others");
    assert_refused(
        &run(serve().env("POSTRIDER_MASTER_KEY", MASTER_KEY))?,
        "master_key and master_key_file are both set; keep one of them",
    );
    Ok(())
}

trait SpawnServing {
    fn spawn_serving(&mut self) -> anyhow::Result<Process>;
}

impl SpawnServing for Command {
    fn spawn_serving(&mut self) -> anyhow::Result<Process> {
        let process = Process::start(self)?;
        process.wait_for_line("postrider is serving at ")?;
        Ok(process)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_of_sealed_secrets_is_rotated() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = sealed(&world, MASTER_KEY).await?;
    let columns = "select format('%s.%s', attrelid::regclass, attname)
                     from pg_attribute join pg_class as class on class.oid = attrelid
                    where attname like 'sealed%' and relkind = 'r' order by 1";
    assert_eq!(
        texts(&admin, columns).await?,
        [
            "channels.channel_executors.sealed_secret",
            "jobs.functions.sealed_secret",
            "tenancy.master_key.sealed_check",
            "tenancy.provider_account_versions.sealed_secret",
            "tenancy.provider_accounts.sealed_secret",
        ],
        "a new column must be a part of tenancy.sealed_values and tenancy.reseal"
    );
    assert_eq!(number(&admin, "select count(*) from tenancy.sealed_values()").await?, 3);
    eventually("the values are those of the tables", async || {
        Ok(number(&admin, format!("select count(*) from ({SEALED}) as sealed")).await? == 3)
    })
    .await
}
