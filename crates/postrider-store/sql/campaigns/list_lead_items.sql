-- A page of a lead's items, newest run first. Each run of the lead's workspace gives the key that its item of the lead would have.
select item.id as "id!",
       item.job_id as "job_id!",
       coalesce(job.position, 0) as "position!",
       item.recipient_id,
       item.recipient,
       item.idempotency_key as "idempotency_key!",
       item.status as "status!",
       item.provider as "provider!",
       item.provider_message_id,
       item.error,
       item.reserved_by,
       item.attempt,
       item.created_at as "created_at!: jiff_sqlx::Timestamp",
       item.finalized_at as "finalized_at: jiff_sqlx::Timestamp",
       execution.doubted_since(
           item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at, job.status,
           job.locked_by, job.locked_at, job.attempts) as "doubted_since: jiff_sqlx::Timestamp",
       run.id as "run_id!",
       run.created_at as "run_created_at!: jiff_sqlx::Timestamp",
       run.campaign_id as "campaign_id!",
       campaign.name as "campaign!",
       phase.phase as "phase!"
  from (select newest.*
          from execution.campaign_runs as newest
         where newest.tenant_id = $1
           and newest.phase_id is not null
           and newest.workspace_id = (select lead.workspace_id from execution.leads as lead where lead.tenant_id = $1 and lead.id = $2)
           and ($3::timestamptz is null or (newest.created_at, newest.id) < ($3, $4::uuid))
         order by newest.created_at desc, newest.id desc
         limit $5) as run
       cross join lateral (
           select known.*
             from execution.channel_outbox as known
            where known.idempotency_key = execution.outbox_key(run.id, $2, run.key_part, run.scheduled_for)
              and known.tenant_id = $1
              and known.workspace_id = run.workspace_id
           offset 0) as item
       left join execution.job_queue as job on job.tenant_id = $1 and job.id = item.job_id
       join execution.campaigns as campaign on campaign.tenant_id = $1 and campaign.id = run.campaign_id
       join execution.campaign_phases as phase on phase.tenant_id = $1 and phase.id = run.phase_id
 order by run.created_at desc, run.id desc
 limit $6
