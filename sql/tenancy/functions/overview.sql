-- Reads for the overview of one tenant.

-- This is a definer function so that its plan is made once per session, without the policy of every table. Each `order by`
-- names the order of the index that holds little more than the counted rows, so that no plan can take another one.
create or replace function tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[])
returns table (
    at timestamptz,
    phases_not_started bigint,
    phases_in_progress bigint,
    phases_paused bigint,
    phases_failed bigint,
    phases_oldest_failed_seconds double precision,
    items_in_flight bigint,
    items_begun bigint,
    items_in_doubt bigint,
    items_in_doubt_for_person bigint,
    items_oldest_doubt_seconds double precision,
    doubted_campaigns uuid[],
    doubts_by_campaign bigint[],
    jobs_waiting bigint,
    jobs_locked bigint,
    jobs_oldest_lock_seconds double precision,
    jobs_put_off bigint,
    accounts_total bigint,
    accounts_circuit_open bigint,
    accounts_waiting bigint,
    replies_pending bigint,
    replies_due bigint,
    replies_retrying bigint,
    replies_in_doubt bigint,
    replies_oldest_seconds double precision,
    replies_unsent bigint,
    replies_dead bigint,
    replies_oldest_dead_seconds double precision,
    messages_unfinished bigint,
    messages_dispatch_failed bigint,
    messages_oldest_failed_seconds double precision,
    events_pending bigint,
    events_stuck bigint,
    events_oldest_ready_seconds double precision,
    job_runs_running bigint,
    job_runs_waiting bigint,
    job_runs_retry_pending bigint,
    job_runs_unfinished bigint,
    job_runs_failed_24h bigint,
    job_runs_retried_24h bigint,
    job_runs_total_24h bigint,
    job_runs_long_running bigint,
    schedules_enabled bigint,
    schedules_overdue_seconds double precision,
    schedules_firings_waiting bigint,
    sync_errors bigint,
    oldest_sync_error_seconds double precision,
    alerts bigint,
    decision_cards bigint,
    oldest_decision_card_seconds double precision,
    newest_run timestamptz,
    newest_campaign timestamptz,
    newest_message timestamptz,
    newest_event bigint,
    newest_job_run timestamptz,
    account_changed timestamptz,
    schedule_changed timestamptz,
    alert_changed timestamptz,
    card_changed timestamptz)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        with doubt as materialized (
            select doubt.campaign_id,
                   doubt.in_doubt_since,
                   doubt.is_for_person or not doubt.provider = any (p_without_person) as is_for_person
              from execution.doubts as doubt
             where doubt.tenant_id = p_tenant_id
             limit 10000
        ), by_campaign as (
            select doubt.campaign_id, count(*) as doubts
              from doubt
             group by doubt.campaign_id
             order by count(*) desc, doubt.campaign_id
             limit 50
        ), begun as (
            select item.status, item.in_doubt_since, item.reserved_by
              from (select job.id
                      from execution.job_queue as job
                     where job.tenant_id = p_tenant_id
                       and job.status = 'locked'
                     order by job.locked_at
                     limit 10000) as job
                   -- One index lookup per job: a join could read every item of the tenant.
                   cross join lateral (
                       select item.status, item.in_doubt_since, item.reserved_by
                         from execution.channel_outbox as item
                        where item.tenant_id = p_tenant_id
                          and item.job_id = job.id
                       offset 0
                   ) as item
             limit 10000
        ), reply as (
            select reply.status, reply.next_attempt_at, reply.attempt_count, reply.in_doubt_since, reply.created_at
              from channels.channel_outbox as reply
             where reply.tenant_id = p_tenant_id
               and reply.status in ('pending', 'sending')
             order by reply.account_id
             limit 10000
        ), rules as (
            -- The first schedule of detect-alerts sets when a job run takes too long.
            select v_now - interval '1 minute' * least(coalesce(
                       (select case when jsonb_typeof(schedule.input -> 'running_minutes_max') = 'number'
                                    then (schedule.input ->> 'running_minutes_max')::double precision
                               end
                          from jobs.schedules as schedule
                         where schedule.tenant_id = p_tenant_id
                           and schedule.function_name = 'detect-alerts'
                         order by schedule.id
                         limit 1), 30), 100000000) as long_before
        ), recent_run as (
            select run.status, run.retry_count
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and run.created_at > v_now - interval '24 hours'
             order by run.created_at desc
             limit 10000
        ), held_run as (
            select run.started_at
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and run.heartbeat_at is not null
             order by run.heartbeat_at
             limit 10000
        ), waiting_run as (
            select run.status, run.started_at
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and ((run.status = 'running' and run.locked_by is null) or run.retry_at is not null)
             order by coalesce(run.retry_at, run.started_at)
             limit 10000
        ), schedule as (
            select schedule.enabled, schedule.next_fire_at, schedule.updated_at
              from jobs.schedules as schedule
             where schedule.tenant_id = p_tenant_id
             limit 10000
        ), alert as (
            select alert.updated_at
              from jobs.alert_instances as alert
             where alert.tenant_id = p_tenant_id
               and alert.status in ('active', 'open', 'triggered')
             limit 10000
        ), card as (
            select card.created_at, card.updated_at
              from jobs.decision_cards as card
             where card.tenant_id = p_tenant_id
               and card.status in ('OPEN', 'IN_PROGRESS')
             limit 10000
        ), account as (
            select account.updated_at
              from tenancy.provider_accounts as account
             where account.tenant_id = p_tenant_id
             limit 10000
        ), state as (
            select state.circuit_open_until, state.wait_until
              from execution.account_states as state
             where state.tenant_id = p_tenant_id
             limit 10000
        )
        select v_now,

               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'not_started' limit 10000) as counted),
               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'in_progress' limit 10000) as counted),
               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'paused' limit 10000) as counted),
               failed.phases,
               failed.oldest_seconds,

               items.in_flight,
               items.counted,
               doubts.counted,
               doubts.for_person,
               doubts.oldest_seconds,
               array(select by_campaign.campaign_id from by_campaign),
               array(select by_campaign.doubts from by_campaign),

               (select count(*)
                  from (select from execution.job_queue as job
                         where job.tenant_id = p_tenant_id and job.status = 'queued' and job.run_after <= v_now
                         order by job.run_after
                         limit 10000) as counted),
               locked.jobs,
               locked.oldest_seconds,
               (select count(*)
                  from (select from execution.job_queue as job
                         where job.tenant_id = p_tenant_id and job.status = 'queued' and job.run_after > v_now
                         order by job.run_after
                         limit 10000) as counted)
               + (select count(*)
                    from (select from execution.job_queue as job
                           where job.tenant_id = p_tenant_id and job.status = 'failed'
                           order by job.run_after
                           limit 10000) as counted),

               (select count(*) from account),
               (select count(*) from state where state.circuit_open_until is not null),
               (select count(*) from state where state.wait_until > v_now),

               replies.pending,
               replies.due,
               replies.retrying,
               replies.in_doubt,
               replies.oldest_seconds,
               replies.counted,
               (select count(*)
                  from (select from channels.channel_outbox as reply
                         where reply.tenant_id = p_tenant_id and reply.status = 'dead'
                         order by reply.updated_at
                         limit 10000) as counted),
               (select extract(epoch from v_now - reply.updated_at)::double precision
                  from channels.channel_outbox as reply
                 where reply.tenant_id = p_tenant_id
                   and reply.status = 'dead'
                 order by reply.updated_at
                 limit 1),

               (select count(*)
                  from (select from channels.channel_messages as message
                         where message.tenant_id = p_tenant_id and message.leased_until is not null
                         order by message.leased_until
                         limit 10000) as counted),
               (select count(*)
                  from (select from channels.channel_messages as message
                         where message.tenant_id = p_tenant_id and message.status = 'dispatch_failed'
                         order by message.id
                         limit 10000) as counted),
               (select extract(epoch from v_now - message.created_at)::double precision
                  from channels.channel_messages as message
                 where message.tenant_id = p_tenant_id
                   and message.status = 'dispatch_failed'
                 order by message.id
                 limit 1),

               (select count(*)
                  from (select from m10_recovery.outbox as event
                         where event.tenant_id = p_tenant_id
                           and event.processed_at is null
                         order by coalesce(event.process_after, '-infinity'::timestamptz)
                         limit 10000) as counted),
               (select count(*)
                  from (select from m10_recovery.outbox as event
                         where event.tenant_id = p_tenant_id
                           and event.processed_at is null
                           and event.retry_count > 0
                           and event.retry_count > p_stuck_after
                         order by event.retry_count
                         limit 10000) as counted),
               (select extract(epoch from v_now - coalesce(event.process_after, event.created_at))::double precision
                  from m10_recovery.outbox as event
                 where event.tenant_id = p_tenant_id
                   and event.processed_at is null
                   and coalesce(event.process_after, '-infinity'::timestamptz) <= v_now
                   and (event.claimed_at is null or event.claimed_at < v_now - interval '5 minutes')
                 order by coalesce(event.process_after, '-infinity'::timestamptz), event.id
                 limit 1),

               (select count(*) from held_run),
               (select count(*) from waiting_run where waiting_run.status = 'running'),
               (select count(*) from waiting_run where waiting_run.status = 'failed'),
               (select count(*) from waiting_run),
               recent.failed,
               recent.retried,
               recent.total,
               (select count(*) from held_run, rules where held_run.started_at < rules.long_before)
               + (select count(*) from waiting_run, rules
                   where waiting_run.status = 'running'
                     and waiting_run.started_at < rules.long_before),

               (select count(*) from schedule where schedule.enabled),
               (select extract(epoch from v_now - min(schedule.next_fire_at))::double precision
                  from schedule
                 where schedule.enabled
                   and schedule.next_fire_at <= v_now),
               (select count(*)
                  from (select from jobs.schedule_firings as firing
                         where firing.tenant_id = p_tenant_id and firing.outcome = 'waiting'
                         order by firing.looked_at
                         limit 10000) as counted),

               (select count(*)
                  from (select from jobs.sync_errors as error
                         where error.tenant_id = p_tenant_id and not error.is_resolved
                         order by error.id
                         limit 10000) as counted),
               (select extract(epoch from v_now - error.created_at)::double precision
                  from jobs.sync_errors as error
                 where error.tenant_id = p_tenant_id
                   and not error.is_resolved
                 order by error.id
                 limit 1),
               (select count(*) from alert),
               cards.counted,
               cards.oldest_seconds,

               -- The newest row of each list. A reader of the stream is told that a list has changed when one of these has.
               (select run.created_at
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                 order by run.created_at desc, run.id desc
                 limit 1),
               (select campaign.created_at
                  from execution.campaigns as campaign
                 where campaign.tenant_id = p_tenant_id
                 order by campaign.created_at desc, campaign.id desc
                 limit 1),
               (select message.created_at
                  from channels.channel_messages as message
                 where message.tenant_id = p_tenant_id
                 order by message.created_at desc
                 limit 1),
               (select event.id
                  from m10_recovery.outbox as event
                 where event.tenant_id = p_tenant_id
                 order by event.id desc
                 limit 1),
               (select run.created_at
                  from jobs.job_runs as run
                 where run.tenant_id = p_tenant_id
                 order by run.created_at desc
                 limit 1),
               (select max(account.updated_at) from account),
               (select max(schedule.updated_at) from schedule),
               (select max(alert.updated_at) from alert),
               cards.changed
          from (select count(*) as phases,
                       extract(epoch from v_now - min(phase.updated_at))::double precision as oldest_seconds
                  from (select phase.updated_at
                          from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id
                           and phase.status = 'failed'
                         limit 10000) as phase) as failed,
               (select count(*) filter (where begun.status = 'queued' and begun.in_doubt_since is null and begun.reserved_by is not null)
                           as in_flight,
                       count(*) as counted
                  from begun) as items,
               (select count(*) as counted,
                       count(*) filter (where doubt.is_for_person) as for_person,
                       extract(epoch from v_now - min(doubt.in_doubt_since))::double precision as oldest_seconds
                  from doubt) as doubts,
               (select count(*) as jobs,
                       extract(epoch from v_now - min(job.locked_at))::double precision as oldest_seconds
                  from (select job.locked_at
                          from execution.job_queue as job
                         where job.tenant_id = p_tenant_id
                           and job.status = 'locked'
                         order by job.locked_at
                         limit 10000) as job) as locked,
               (select count(*) filter (where reply.status = 'pending') as pending,
                       count(*) filter (where reply.status = 'pending' and reply.next_attempt_at <= v_now) as due,
                       count(*) filter (where reply.attempt_count > 0) as retrying,
                       count(*) filter (where reply.in_doubt_since is not null) as in_doubt,
                       extract(epoch from v_now - min(reply.created_at))::double precision as oldest_seconds,
                       count(*) as counted
                  from reply) as replies,
               (select count(*) filter (where recent_run.status = 'failed') as failed,
                       count(*) filter (where recent_run.retry_count > 0) as retried,
                       count(*) as total
                  from recent_run) as recent,
               (select count(*) as counted,
                       extract(epoch from v_now - min(card.created_at))::double precision as oldest_seconds,
                       max(card.updated_at) as changed
                  from card) as cards;
end
$$;
comment on function tenancy.read_overview(uuid, integer, text[]) is
    'Returns the numbers of a tenant''s overview in one row. No number reads more than 10,000 rows: it stops there. Ages are '
    'in seconds, and null where nothing waits. An event with more failures than p_stuck_after is stuck; doubts at the '
    'providers of p_without_person need no person. The columns from newest_run on show whether a list has changed.';
revoke all on function tenancy.read_overview(uuid, integer, text[]) from public;
grant execute on function tenancy.read_overview(uuid, integer, text[]) to postrider_app, postrider_worker;
