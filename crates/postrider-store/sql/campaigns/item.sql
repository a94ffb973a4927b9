-- One item with its send job, its run, its accounts and its doubt. Every join follows a primary key. `offset 0` keeps the planner from
-- joining the tables in another order, in which it may read all send jobs of the tenant.
select item.id,
       item.run_id,
       item.job_id,
       item.channel,
       item.provider,
       item.recipient_id,
       item.recipient,
       item.idempotency_key,
       item.status,
       item.provider_message_id,
       item.error,
       item.reserved_by,
       item.attempt,
       item.message_hash,
       item.created_at as "created_at: jiff_sqlx::Timestamp",
       item.finalized_at as "finalized_at: jiff_sqlx::Timestamp",
       doubted.since as "doubted_since: jiff_sqlx::Timestamp",
       doubted.since + run.quiet_time as "quiet_until: jiff_sqlx::Timestamp",
       now() >= doubted.since + run.quiet_time as is_quiet,
       job.position,
       job.job_type,
       job.status as job_status,
       job.outcome,
       job.attempts,
       job.max_attempts,
       nullif(job.run_after, 'infinity') as "run_after: jiff_sqlx::Timestamp",
       job.locked_by,
       job.locked_at as "locked_at: jiff_sqlx::Timestamp",
       job.last_error,
       job.created_at as "job_created_at: jiff_sqlx::Timestamp",
       job.finished_at as "job_finished_at: jiff_sqlx::Timestamp",
       run.provider_account_id,
       account.name as "account_name?",
       account.provider as "account_provider?",
       item.moved_to_account_id,
       other.name as "other_name?",
       other.provider as "other_provider?",
       list.name as "list?",
       asset.content,
       doubt.provider as "doubt_provider?",
       doubt.looks as "looks?",
       doubt.next_look_at as "next_look_at?: jiff_sqlx::Timestamp",
       doubt.is_for_person as "is_for_person?",
       doubt.note as "note?",
       delivery.status as "delivery_status?",
       delivery.detail as "delivery_detail?",
       delivery.reported_at as "delivery_at?: jiff_sqlx::Timestamp"
  from (select * from execution.channel_outbox where tenant_id = $1 and id = $2 offset 0) as item
       join lateral (
           select * from execution.job_queue where tenant_id = item.tenant_id and id = item.job_id offset 0) as job on true
       join lateral (
           select * from execution.campaign_runs where tenant_id = item.tenant_id and id = item.run_id offset 0) as run on true
       join lateral (
           select * from execution.campaign_phases where tenant_id = item.tenant_id and id = run.phase_id offset 0) as phase on true
       join lateral (
           select * from execution.assets where tenant_id = item.tenant_id and id = run.asset_id offset 0) as asset on true
       cross join lateral (
           select execution.doubted_since(
               item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
               job.locked_by, job.locked_at, job.attempts)) as doubted (since)
       left join execution.lead_lists as list on list.tenant_id = item.tenant_id and list.id = phase.list_id
       left join tenancy.provider_accounts as account
         on account.tenant_id = item.tenant_id and account.id = run.provider_account_id
       left join tenancy.provider_accounts as other
         on other.tenant_id = item.tenant_id and other.id = item.moved_to_account_id
       left join execution.doubts as doubt on doubt.tenant_id = item.tenant_id and doubt.outbox_id = item.id
       left join lateral (
           select * from execution.deliveries where tenant_id = item.tenant_id and outbox_id = item.id offset 0) as delivery on true
