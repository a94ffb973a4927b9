-- One item with its send job, its run, its accounts and its doubt. Every join follows a primary key.
select item.id,
       item.run_id,
       item.job_id,
       item.channel,
       item.provider,
       item.recipient_id,
       item.recipient,
       message.id as "message_id?",
       item.idempotency_key,
       item.status,
       item.provider_message_id,
       item.error,
       item.reserved_by,
       item.attempt,
       item.message_hash,
       item.payload,
       item.result,
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
       coalesce(asset.content, message.content, '{}') as "content!",
       asset.id as "asset_id?",
       asset.name as "asset_name?",
       asset.version as "asset_version?",
       doubt.provider as "doubt_provider?",
       doubt.looks as "looks?",
       doubt.next_look_at as "next_look_at?: jiff_sqlx::Timestamp",
       doubt.is_for_person as "is_for_person?",
       doubt.note as "note?"
  from execution.channel_outbox as item
       join execution.job_queue as job on job.tenant_id = item.tenant_id and job.id = item.job_id
       join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
       left join execution.campaign_phases as phase on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
       left join execution.messages as message
         on run.key_part = 'message' and message.tenant_id = item.tenant_id and message.id = item.recipient_id
       left join execution.assets as asset
         on asset.tenant_id = run.tenant_id and asset.id = coalesce(run.asset_id, message.asset_id)
       cross join lateral (
           select execution.doubted_since(
               item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
               job.locked_by, job.locked_at, job.attempts)) as doubted (since)
       left join execution.lead_lists as list on list.tenant_id = phase.tenant_id and list.id = phase.list_id
       left join tenancy.provider_accounts as account
         on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
       left join tenancy.provider_accounts as other
         on other.tenant_id = item.tenant_id and other.id = item.moved_to_account_id
       left join execution.doubts as doubt on doubt.tenant_id = item.tenant_id and doubt.outbox_id = item.id
 where item.tenant_id = $1
   and item.id = $2
