-- The phases of a campaign, each with its newest run.
select phase.id,
       phase.phase,
       phase.kind,
       phase.channel,
       phase.status,
       coalesce(phase.progress_reported, phase.progress)::double precision as "progress!",
       phase.asset_id,
       asset.name || '@' || asset.version as asset,
       list.name as "list?",
       account.name as "provider_account?",
       failover.name as "failover_account?",
       phase.failure_tolerance::double precision as "failure_tolerance!",
       phase.scheduled_for as "scheduled_for: jiff_sqlx::Timestamp",
       extract(epoch from phase.quiet_time)::double precision as "quiet_time_seconds!",
       newest.id as "run_id?",
       phase.status = 'failed' and coalesce(phase.canceled_run_id = newest.id, false) as "canceled!"
  from execution.campaign_phases as phase
       left join execution.assets as asset
         on asset.tenant_id = phase.tenant_id and asset.id = phase.asset_id
       left join execution.lead_lists as list
         on list.tenant_id = phase.tenant_id and list.id = phase.list_id
       left join tenancy.provider_accounts as account
         on account.tenant_id = phase.tenant_id and account.id = phase.provider_account_id
       left join tenancy.provider_accounts as failover
         on failover.tenant_id = phase.tenant_id and failover.id = phase.failover_account_id
       left join lateral (
           select run.id
             from execution.campaign_runs as run
            where run.tenant_id = phase.tenant_id
              and run.phase_id = phase.id
            order by run.number desc
            limit 1) as newest on true
 where phase.tenant_id = $1
   and phase.campaign_id = $2
 order by phase.position
