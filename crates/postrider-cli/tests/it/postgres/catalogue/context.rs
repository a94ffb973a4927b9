//! The tenant of a session is what the server signed: attacks on it, and what each login can do with its role alone.

use std::{str::FromStr, time::Duration};

use postrider_store::postgres::{
    context,
    embedded::{Cluster, Options, SUPERUSER},
    migrate, pool,
};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgConnectOptions};
use uuid::Uuid;

use super::visibility::{Tenant, tenant_tables};
use crate::{
    sql::{acting_as, execute, number, refusal, tenant, texts},
    world::{World, signature, signing_pool},
};

/// A login of its own, as an operator would create it. Roles belong to the cluster, so it is dropped with its test.
struct Login {
    admin: PgPool,
    name: String,
}

impl Login {
    async fn create(world: &World, roles: &str) -> anyhow::Result<Self> {
        let admin = world.client("postgres").await?;
        let name = format!("login_{}", Uuid::now_v7().simple());
        execute(&admin, format!("create role {name} login in role {roles}")).await?;
        Ok(Self { admin, name })
    }

    async fn connect(&self, world: &World) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&world.url(&self.name)).await?)
    }

    async fn drop(self) -> anyhow::Result<()> {
        Ok(execute(&self.admin, format!("drop role {}", self.name)).await?)
    }
}

/// Every way to name another tenant without its signature.
fn forgeries(own: Uuid, other: Uuid) -> Vec<String> {
    let replayed = signature(own);
    let wrong = "0".repeat(64);
    let upper = signature(other).to_uppercase();
    let half = &signature(other)[..32];
    vec![
        format!("set app.current_tenant_id = '{other}'"),
        format!("set local app.current_tenant_id = '{other}'"),
        format!("set app.current_tenant = '{other}'"),
        format!("set local app.current_tenant = '{other}'"),
        format!("select set_config('app.current_tenant_id', '{other}', true)"),
        format!("select set_config('app.current_tenant', '{other}', false)"),
        format!("set local app.current_tenant_id = '{other}'; set local app.current_tenant = '{other}'"),
        format!("set local app.current_tenant_id = '{other}'; set local app.tenant_signature = '{replayed}'"),
        format!("set local app.current_tenant = '{other}'; set local app.tenant_signature = '{replayed}'"),
        format!("{}; set local app.current_tenant_id = '{other}'", acting_as(own)),
        format!("set local app.current_tenant_id = '{other}'; set local app.tenant_signature = '{wrong}'"),
        format!("set local app.current_tenant_id = '{other}'; set local app.tenant_signature = '{upper}'"),
        format!("set local app.current_tenant_id = '{other}'; set local app.tenant_signature = '{half}'"),
        format!("set local app.current_tenant_id = '{other}'; set local app.tenant_signature = ''"),
        format!("set local app.current_tenant_id = '{}'", Uuid::nil()),
        format!(
            "set local app.current_tenant_id = '{other}'; set local session_authorization = postrider_worker"
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_login_of_the_app_role_acts_for_a_tenant_that_the_server_did_not_sign() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    let tables = tenant_tables(&admin).await?;
    let before = number(&admin, "select count(*) from tenancy.api_keys").await?;
    let (mut logins, mut names) = (Vec::new(), vec!["postrider_app".to_owned(), "postrider_read".to_owned()]);
    for roles in ["postrider_app", "postrider_read", "postrider_app, postrider_read, postrider_publish"] {
        let login = Login::create(&world, roles).await?;
        names.push(login.name.clone());
        logins.push(login);
    }
    let acts = [
        "select tenancy.current_tenant_id()::text".to_owned(),
        "select tenancy.required_tenant_id()::text".to_owned(),
        format!(
            "select tenancy.create_api_key('{}', gen_random_uuid(), 'mine', 'admin', 'x', sha256('mine'), null, 'me')::text",
            other.id
        ),
        format!("select tenancy.revoke_api_key('{}', '{}', 'me')::text", other.id, other.key),
        format!("select events.close_outbox_event('{}', {}, 'me', 'why')", other.id, other.event),
        format!("select execution.verify_launch('{}', '{}')::text", other.id, other.run),
        format!("select provider from tenancy.account_of_callback('{}', '{}')", other.id, other.account),
        format!(
            "select id::text from jobs.which_ended(array['{}']::uuid[], array['{}']::uuid[])",
            other.id, other.job
        ),
    ];
    let reads = tables.iter().map(|(table, column)| format!("select {column}::text from {table}"));
    let attacks: Vec<String> = acts.into_iter().chain(reads).collect();
    let events = number(&admin, "select count(*) from m10_recovery.outbox").await?;
    for name in &names {
        let mut client = PgConnection::connect(&world.url(name)).await?;
        // The last login may publish for any tenant, because it has postrider_publish as well.
        let publish =
            "select m10_recovery.publish_outbox('order', '42', 'order.placed', '{}')::text".to_owned();
        let attacks =
            if names.last() == Some(name) { attacks.clone() } else { [&attacks[..], &[publish]].concat() };
        for forgery in forgeries(own.id, other.id) {
            for attack in &attacks {
                execute(&mut client, "begin").await?;
                let seen = match execute(&mut client, &forgery).await {
                    Ok(()) => texts(&mut client, attack).await,
                    Err(refused) => Err(refused),
                };
                execute(&mut client, "rollback").await?;
                // The nil tenant is the server's: without its signature it is refused like any other.
                assert_eq!(refusal(seen)?.code, "42501", "{name}: {forgery}; {attack}");
                execute(&mut client, "reset all").await?;
            }
        }
        // Defaults of the login and of the connection name a tenant, and do not sign it. From PostgreSQL 15 on a login cannot give
        // itself such a default, so the administrator does.
        if name.starts_with("login_") {
            for setting in ["app.current_tenant_id", "app.current_tenant"] {
                let by_itself =
                    execute(&mut client, format!("alter role {name} set {setting} = '{}'", other.id)).await;
                assert_eq!(refusal(by_itself)?.code, "42501", "{name}");
                execute(&admin, format!("alter role {name} set {setting} = '{}'", other.id)).await?;
                let by_options = PgConnectOptions::from_str(&world.url(name))?.options([(setting, other.id)]);
                for mut session in [
                    PgConnection::connect(&world.url(name)).await?,
                    PgConnection::connect_with(&by_options).await?,
                ] {
                    for attack in &attacks {
                        assert_eq!(
                            refusal(texts(&mut session, attack).await)?.code,
                            "42501",
                            "{name}: {attack}"
                        );
                    }
                }
                execute(&admin, format!("alter role {name} reset {setting}")).await?;
            }
        }
        client.close().await?;
    }
    for login in logins {
        login.drop().await?;
    }
    assert_eq!(number(&admin, "select count(*) from tenancy.api_keys").await?, before);
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, events);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_that_signs_tenants_is_read_by_workers_alone() -> anyhow::Result<()> {
    let world = World::new().await?;
    let publisher = Login::create(&world, "postrider_publish").await?;
    for name in ["postrider_app", "postrider_read", &publisher.name, "postrider_worker"] {
        let mut client = PgConnection::connect(&world.url(name)).await?;
        for attack in [
            "select tenancy.context_key()",
            "select key from tenancy.context_keys",
            "select count(*) from tenancy.context_keys",
            "select outer_pad from tenancy.context_keys",
            "copy tenancy.context_keys to stdout",
            "insert into tenancy.context_keys (key, inner_pad, outer_pad) values ('', '', '')",
            "delete from tenancy.context_keys",
            "select tenancy.add_context_key()",
            "select tenancy.rotate_context_key('me')",
        ] {
            let done = execute(&mut client, attack).await;
            if (name, attack) == ("postrider_worker", "select tenancy.context_key()") {
                done?;
            } else {
                assert_eq!(refusal(done)?.code, "42501", "{name}: {attack}");
            }
        }
        client.close().await?;
    }
    let admin = world.client("postgres").await?;
    execute(&admin, "analyze tenancy.context_keys").await?;
    let statistics = "select count(*) from pg_stats where tablename = 'context_keys'";
    let app = world.client("postrider_app").await?;
    assert_eq!(number(&app, statistics).await?, 0);
    publisher.drop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_publishes_for_any_tenant_and_can_do_nothing_else() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let own = Tenant::create(&admin, "own").await?;
    let login = Login::create(&world, "postrider_publish").await?;
    let mut client = login.connect(&world).await?;

    let publish = "select m10_recovery.publish_outbox('order', '42', 'order.placed', '{}')";
    for context in [
        String::new(),
        format!("set local app.current_tenant_id = '{}'", own.id),
        format!("set local app.current_tenant = '{}'", own.id),
    ] {
        execute(&mut client, format!("begin; {context}")).await?;
        let id = number(&mut client, publish).await?;
        execute(&mut client, "commit").await?;
        let written = format!("select tenant_id::text from m10_recovery.outbox where id = {id}");
        let system = texts(&admin, "select tenancy.system_tenant_id()::text").await?.remove(0);
        let expected = if context.is_empty() { system } else { own.id.to_string() };
        assert_eq!(texts(&admin, written).await?, [expected], "{context}");
    }
    // A login that was granted the function alone, as older documentation had it, publishes as before.
    let direct = format!("direct_{}", Uuid::now_v7().simple());
    execute(
        &admin,
        format!(
            "create role {direct} login; grant usage on schema m10_recovery to {direct};
             grant execute on function m10_recovery.publish_outbox(text, text, text, jsonb) to {direct}"
        ),
    )
    .await?;
    let mut other = PgConnection::connect(&world.url(&direct)).await?;
    execute(&mut other, format!("begin; set local app.current_tenant_id = '{}'", own.id)).await?;
    number(&mut other, publish).await?;
    execute(&mut other, "commit").await?;
    other.close().await?;
    execute(&admin, format!("drop owned by {direct}; drop role {direct}")).await?;

    let everything = "select 'select 1 from ' || oid::regclass from pg_class where relkind in ('r', 'v', 'S')
                         and relnamespace::regnamespace::text in ('postrider', 'tenancy', 'events', 'm10_recovery', 'execution', 'channels', 'jobs')
                       union all
                      select format('select %I.%I(%s)', pronamespace::regnamespace, proname,
                                    (select string_agg('null::' || format_type(type, null), ', ' order by at)
                                       from unnest(proargtypes) with ordinality as argument (type, at)))
                        from pg_proc
                       where pronamespace::regnamespace::text in ('postrider', 'tenancy', 'events', 'm10_recovery', 'execution', 'channels', 'jobs')
                         and prorettype <> 'trigger'::regtype and proname not in ('publish_outbox', 'send_message')";
    for attack in texts(&admin, everything).await? {
        for context in
            ["", &format!("set app.current_tenant_id = '{}'; ", own.id), &format!("{}; ", acting_as(own.id))]
        {
            let refused = refusal(execute(&mut client, format!("{context}{attack}")).await)?;
            assert_eq!(refused.code, "42501", "{context}{attack}: {refused:?}");
            execute(&mut client, "reset all").await?;
        }
    }
    for attack in [
        "set role postrider_app",
        "set role postrider_worker",
        "set role postrider_owner",
        "create schema mine",
        "create table public.t ()",
        "create table m10_recovery.t ()",
        "grant postrider_app to current_user",
        "alter role current_user createrole",
    ] {
        assert_eq!(refusal(execute(&mut client, attack).await)?.code, "42501", "{attack}");
    }
    client.close().await?;
    login.drop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_is_valid_for_one_rotation_of_the_key_and_not_for_two() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let own = tenant(&admin, "own").await?.0;
    let app = world.client("postrider_app").await?;
    let sees = async |context: &str| -> Result<Vec<String>, sqlx::Error> {
        let mut transaction = app.begin().await?;
        execute(&mut *transaction, context).await?;
        texts(&mut *transaction, "select id::text from tenancy.tenants").await
    };
    let context = |signature: &str| {
        format!("set local app.current_tenant_id = '{own}'; set local app.tenant_signature = '{signature}'")
    };
    let printed = || -> anyhow::Result<String> {
        let output = world.postrider(&["tenants", "context", "own", "--json"])?;
        let value: serde_json::Value = serde_json::from_str(&output.stdout)?;
        Ok(value["signature"].as_str().unwrap_or_default().to_owned())
    };
    let mine = [own.to_string()];
    let first = signature(own);
    assert_eq!(printed()?, first);
    assert_eq!(sees(&context(&first)).await?, mine);

    assert_eq!(world.postrider(&["tenants", "rotate-context-key"])?.code, 0);
    let second = printed()?;
    assert_ne!(second, first);
    assert_eq!(sees(&context(&first)).await?, mine);
    assert_eq!(sees(&context(&second)).await?, mine);

    assert_eq!(world.postrider(&["tenants", "rotate-context-key"])?.code, 0);
    assert_eq!(refusal(sees(&context(&first)).await)?.code, "42501");
    assert_eq!(sees(&context(&second)).await?, mine);
    assert_eq!(sees(&context(&printed()?)).await?, mine);
    assert_eq!(number(&admin, "select count(*) from tenancy.context_keys").await?, 2);
    let log = "select action from tenancy.audit_log where action = 'context_key.rotated'";
    assert_eq!(texts(&admin, log).await?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_context_opens_one_tenant_to_a_login_of_postrider_read() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, _) = (tenant(&admin, "own").await?.0, tenant(&admin, "other").await?);
    let output = world.postrider(&["tenants", "context", "own"])?;
    assert_eq!(output.code, 0, "{}", output.stderr);

    let mut reader = PgConnection::connect(&world.url("postrider_read")).await?;
    execute(&mut reader, output.stdout).await?;
    assert_eq!(texts(&mut reader, "select id::text from tenancy.tenants").await?, [own.to_string()]);
    let refused = refusal(
        texts(&mut reader, "select tenancy.create_api_key(null, null, null, null, null, null, null, null)")
            .await,
    )?;
    assert_eq!(refused.code, "42501");
    let unknown = world.postrider(&["tenants", "context", "nobody"])?;
    assert!(
        unknown.code != 0 && unknown.stderr.contains("there is no tenant `nobody`"),
        "{}",
        unknown.stderr
    );
    Ok(())
}

/// The parts of a server's transaction that other sessions of the same role can see.
async fn shown(url: &str, admin_url: &str) -> anyhow::Result<(String, Vec<String>)> {
    let settings = pool::Settings {
        connections_max: 2,
        acquire_timeout: Duration::from_secs(60),
        ..pool::Settings::default()
    };
    let pool = signing_pool(url, admin_url, settings).await?;
    let mut admin = PgConnection::connect(admin_url).await?;
    let own = Uuid::now_v7();
    sqlx::query("select tenancy.create_tenant($1, $2, 'own', 'a test')")
        .bind(own)
        .bind(Uuid::now_v7())
        .execute(&mut admin)
        .await?;
    let signature = context::key(&mut admin).await?.sign(postrider_model::ids::TenantId(own));
    let mut transaction = pool::begin_as(&pool, postrider_model::ids::TenantId(own)).await?;
    let mut spy = PgConnection::connect(url).await?;
    let shown = texts(&mut spy, "select query from pg_stat_activity where usename = current_user").await?;
    assert_eq!(texts(&mut *transaction, "select id::text from tenancy.tenants").await?, [own.to_string()]);
    transaction.rollback().await?;
    pool.close().await;
    Ok((signature, shown))
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sessions_of_the_role_are_not_shown_the_signature() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (signature, shown_to_spies) = shown(&world.url("postrider_app"), &world.admin_url()).await?;
    assert!(
        shown_to_spies.iter().any(|query| query.starts_with("begin isolation level read committed;")),
        "{shown_to_spies:?}"
    );
    assert!(shown_to_spies.iter().all(|query| !query.contains(&signature)), "{shown_to_spies:?}");

    // A server that shows long statements.
    let data_dir = std::env::temp_dir().join(format!("postrider-test-shown-{}", Uuid::now_v7().simple()));
    let settings = vec![("track_activity_query_size".to_owned(), "64kB".to_owned())];
    let options = Options { data_dir: data_dir.clone(), bin_dir: None, settings };
    let cluster = tokio::task::spawn_blocking(move || Cluster::start_or_adopt(&options)).await??;
    let (admin, app) = (cluster.url(SUPERUSER, "postgres"), cluster.url("postrider_app", "postgres"));
    let tried = async {
        migrate::run(&admin).await?;
        shown(&app, &admin).await
    }
    .await;
    tokio::task::spawn_blocking(move || cluster.stop()).await??;
    std::fs::remove_dir_all(data_dir)?;
    let (signature, shown_to_spies) = tried?;
    assert!(shown_to_spies.iter().all(|query| !query.contains(&signature)), "{shown_to_spies:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_of_a_callback_is_told_to_the_server_and_to_its_tenant_alone() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let (own, other) = (Tenant::create(&admin, "own").await?, Tenant::create(&admin, "other").await?);
    let app = world.client("postrider_app").await?;
    let of = |tenant: Uuid, account: Uuid| {
        format!("select count(*)::text from tenancy.account_of_callback('{tenant}', '{account}')")
    };
    for context in [acting_as(own.id), acting_as(Uuid::nil()), acting_as(other.id), String::new()] {
        let mut transaction = app.begin().await?;
        execute(&mut *transaction, &context).await?;
        if context == acting_as(own.id) {
            for (account, found) in [(own.account, "1"), (other.account, "0")] {
                assert_eq!(texts(&mut *transaction, of(own.id, account)).await?, [found]);
            }
            continue;
        }
        // The server's context is no tenant's: it shows no row.
        if context == acting_as(Uuid::nil()) {
            for (table, column) in tenant_tables(&admin).await? {
                let readable =
                    format!("select has_any_column_privilege('postrider_app', '{table}', 'select')::text");
                if texts(&admin, readable).await? == ["true"] {
                    let rows =
                        texts(&mut *transaction, format!("select {column}::text from {table}")).await?;
                    assert_eq!(rows, [""; 0], "{table}");
                }
            }
        }
        let refused = refusal(texts(&mut *transaction, of(own.id, own.account)).await)?;
        assert_eq!(refused.code, "42501", "{context}");
    }
    Ok(())
}
