//! Who may call and read what: one list, so that a change of rights is a change of this file.

use crate::{sql::texts, world::World};

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_call_these_functions_and_no_other() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let granted = "select oid::regprocedure || ': ' || string_agg(right(role, -10), ' ' order by role) \
          from pg_proc, unnest(array['postrider_app', 'postrider_worker', 'postrider_read']) as role \
         where pronamespace::regnamespace::text in ('postrider', 'tenancy', 'm10_recovery', 'execution', 'channels') \
           and has_function_privilege(role, oid, 'execute') \
         group by oid order by oid::regprocedure::text collate \"C\"";
    assert_eq!(
        texts(&admin, granted).await?,
        [
            "channels.claim_replies(text,integer,integer,uuid[],integer[],uuid,uuid): worker",
            "channels.claim_unfinished_messages(integer,interval): worker",
            "channels.deny_message(uuid,integer,text): app worker",
            "channels.enqueue_kept_replies(uuid[],integer): worker",
            "channels.executor_of(uuid): app worker",
            "channels.fail_message(uuid,integer,jsonb,text): app worker",
            "channels.finish_message(uuid,integer,uuid,jsonb,integer): app worker",
            "channels.link_sender(uuid,uuid,text,text,text,text): app",
            "channels.measure_replies(): worker",
            "channels.prune_messages(interval,integer): worker",
            "channels.put_executor(uuid,uuid,text,text,integer,bytea,text,jsonb,text): app",
            "channels.receive_message(uuid,uuid,uuid,text,text,text,text,text,uuid,interval,integer): app",
            "channels.recent_messages(uuid,text): app worker",
            "channels.reclaim_replies(interval,integer): worker",
            "channels.record_delivery(uuid,uuid,text,text,boolean,timestamp with time zone,text): app",
            "channels.remove_executor(uuid,text): app",
            "channels.requeue_replies(uuid,uuid,text,text,timestamp with time zone,timestamp with time zone,integer,text): app",
            "channels.retry_message(uuid,text): app",
            "channels.settle_replies(text,uuid[],integer[],text[],text[],text[],interval[],boolean[]): worker",
            "channels.unlink_sender(uuid,text): app",
            "execution.await_reservations(uuid,text): app",
            "execution.begin_outbox_items(text,uuid[],integer[],integer[],integer[],uuid[],text[],bytea[],text[],text[]): worker",
            "execution.claim_doubts(text,text[],integer,interval,uuid[]): worker",
            "execution.claim_queued_jobs(text,integer,uuid[],uuid[]): worker",
            "execution.close_circuit(text,uuid,integer,boolean): worker",
            "execution.complete_job(uuid,text,integer,interval): worker",
            "execution.control_phase(uuid,text,text,text,text,text,integer): app",
            "execution.create_asset(uuid,uuid,text,text,jsonb,text): app",
            "execution.create_campaign(uuid,uuid,text,boolean,jsonb,text): app",
            "execution.deploy_campaign(uuid,text,text,uuid,integer): app",
            "execution.doubted_since(execution.channel_outbox,text,text,timestamp with time zone,integer): app read worker",
            "execution.fail_job(uuid,text,integer,text,interval): worker",
            "execution.finalize_outbox_items(text,uuid[],text[],text[],text[]): worker",
            "execution.heartbeat_jobs(text,uuid[],integer[]): worker",
            "execution.hold_account(text,uuid,integer,boolean,double precision,text): worker",
            "execution.key_time(timestamp with time zone): app read worker",
            "execution.measure_circuits(): worker",
            "execution.measure_jobs(): worker",
            "execution.merge_leads(uuid,uuid,text,uuid): app",
            "execution.move_outbox_items(text,uuid[]): worker",
            "execution.note_progress(text): worker",
            "execution.open_circuit(text,uuid,integer,boolean,text): worker",
            "execution.outbox_key(uuid,uuid,text,timestamp with time zone): app read worker",
            "execution.prune_campaign_events(timestamp with time zone,integer): worker",
            "execution.put_off_doubt(text,uuid,uuid,integer,timestamp with time zone,boolean,text): worker",
            "execution.put_off_job(uuid,text,integer,interval,text,text,boolean,jsonb): worker",
            "execution.read_account_states(text,uuid[]): worker",
            "execution.read_accounts(text,uuid,integer): worker",
            "execution.read_begun_items(text,uuid,integer): worker",
            "execution.read_job(text,uuid,integer): worker",
            "execution.read_leads(text,uuid,integer): worker",
            "execution.record_callback(uuid,text,text,text,boolean): app",
            "execution.release_job(uuid,text,integer,interval): worker",
            "execution.report_progress(uuid,text,numeric,text): app",
            "execution.resolve_in_doubt(uuid,text,text,text,text): app",
            "execution.run_progress(uuid[]): app read worker",
            "execution.settle_doubt(text,uuid,uuid,integer,text,text,text): worker",
            "execution.success_of(text): app read worker",
            "execution.suppress_lead(uuid,text,text): app",
            "execution.take_turn_for_doubt(text,uuid,uuid,integer,double precision): worker",
            "execution.take_turns(text,uuid,integer,integer,boolean,double precision,boolean): worker",
            "execution.tend_phase(text): worker",
            "execution.verify_launch(uuid): app read worker",
            "m10_recovery.claim_outbox_events(text,integer): worker",
            "m10_recovery.close_outbox_event(bigint,text,text): app",
            "m10_recovery.complete_outbox_event(bigint,text,boolean,text): worker",
            "m10_recovery.complete_outbox_events(text,bigint[],text[]): worker",
            "m10_recovery.contract_violations(): app read worker",
            "m10_recovery.describe_claims(text,bigint[]): worker",
            "m10_recovery.note_deliveries(text,bigint[],text[]): worker",
            "m10_recovery.outbox_backlog(integer): worker",
            "m10_recovery.prune_outbox(timestamp with time zone,bigint,integer): worker",
            "m10_recovery.publish_outbox(text,text,text,jsonb): app worker",
            "m10_recovery.release_outbox_events(text,bigint[],bigint[]): worker",
            "m10_recovery.retry_outbox_event(bigint,text): app",
            "tenancy.account_of_callback(uuid): app",
            "tenancy.authenticate_api_key(bytea): app",
            "tenancy.begin_request(text,bytea): app",
            "tenancy.create_api_key(uuid,text,text,text,bytea,timestamp with time zone,text): app",
            "tenancy.create_provider_account(uuid,uuid,text,text,jsonb,bytea,text): app",
            "tenancy.current_tenant_id(): app read worker",
            "tenancy.finish_request(text,smallint,text,text): app",
            "tenancy.limit_provider_account(uuid,jsonb,text): app",
            "tenancy.may_act_for(uuid): app read worker",
            "tenancy.prune_requests(integer): worker",
            "tenancy.remove_provider_account(uuid,text): app",
            "tenancy.required_tenant_id(): app read worker",
            "tenancy.revoke_api_key(uuid,text): app",
            "tenancy.rotate_provider_account(uuid,bytea,text): app",
        ]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_read_these_tables_and_not_the_secrets() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    // A table that is read in part is listed with the columns that stay hidden.
    let granted = "select class.oid::regclass || ': ' || string_agg(right(role, -10) || coalesce(' without ' || hidden, ''), ', ' order by role) \
          from pg_class as class, unnest(array['postrider_app', 'postrider_worker', 'postrider_read']) as role, \
               lateral (select string_agg(attname, ' ' order by attnum) as hidden from pg_attribute \
                         where attrelid = class.oid and attnum > 0 and not attisdropped \
                           and not has_column_privilege(role, class.oid, attnum, 'select')) as columns \
         where relnamespace::regnamespace::text in ('postrider', 'tenancy', 'm10_recovery', 'execution', 'channels') and relkind = 'r' \
           and has_any_column_privilege(role, class.oid, 'select') \
         group by class.oid order by class.oid::regclass::text collate \"C\"";
    assert_eq!(
        texts(&admin, granted).await?,
        [
            "channels.channel_executors: app without sealed_secret, read without sealed_secret, worker without sealed_secret",
            "channels.channel_links: app, read, worker",
            "channels.channel_messages: app, read, worker",
            "channels.channel_outbox: app, read, worker",
            "execution.account_states: app, read, worker",
            "execution.assets: app, read, worker",
            "execution.campaign_audit_log: app, read, worker",
            "execution.campaign_events: app, read, worker",
            "execution.campaign_phases: app, read, worker",
            "execution.campaign_runs: app, read, worker",
            "execution.campaigns: app, read, worker",
            "execution.channel_outbox: app, read, worker",
            "execution.doubts: app, read, worker",
            "execution.job_queue: app, read, worker",
            "execution.lead_list_members: app, read, worker",
            "execution.lead_lists: app, read, worker",
            "execution.leads: app, read, worker",
            "execution.provider_callbacks: app, read, worker",
            "m10_recovery.outbox: app, read, worker",
            "postrider.catalogue: app, read, worker",
            "postrider.migrations: app, read, worker",
            "tenancy.api_keys: app without key_hash, read without key_hash",
            "tenancy.audit_log: app, read, worker",
            "tenancy.provider_accounts: app without sealed_secret, read without sealed_secret, worker",
            "tenancy.tenants: app, read, worker",
            "tenancy.workspaces: app, read, worker",
        ]
    );
    Ok(())
}
