-- Progress of phases: counted for deliveries, reported for external phases.

create or replace function execution.run_counts(p_tenant_id uuid, p_run_id uuid)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
               'id', progress.run_id, 'intended', progress.intended, 'succeeded', progress.succeeded, 'failed', progress.failed,
               'skipped', progress.skipped, 'inDoubt', progress.in_doubt, 'inFlight', progress.in_flight)
      from execution.run_progress(p_tenant_id, array[p_run_id]) as progress
$$;
comment on function execution.run_counts(uuid, uuid) is
    'Returns the counts of a run''s items as progress events carry them. Null if the tenant has no such run.';
revoke all on function execution.run_counts(uuid, uuid) from public;

create or replace function execution.note_counted_progress(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric, p_run jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now constant timestamptz := clock_timestamp();
    v_progress constant numeric := trunc(least(p_progress, 100), 1);
    v_phase record;
begin
    select phase.phase, phase.progress,
           campaign.progress_at is null or campaign.progress_at <= v_now - interval '500 milliseconds' as is_due
      into strict v_phase
      from execution.campaign_phases as phase
           join execution.campaigns as campaign
             on campaign.tenant_id = phase.tenant_id and campaign.id = phase.campaign_id
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
       for no key update of phase;
    if v_phase.progress = v_progress or v_phase.is_due then
        update execution.campaign_phases as phase
           set progress = v_progress,
               progress_reported = null
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and (phase.progress <> v_progress or phase.progress_reported is not null);
    else
        update execution.campaign_phases as phase
           set progress_reported = v_progress
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and phase.progress_reported is distinct from v_progress;
        return;
    end if;
    if v_phase.progress <> v_progress then
        update execution.campaigns
           set progress_at = v_now
         where tenant_id = p_tenant_id
           and id = p_campaign_id;
        perform execution.note_event(p_tenant_id, p_campaign_id, v_phase.phase, 'campaign_progress',
                                     jsonb_strip_nulls(jsonb_build_object('progressPercentage', v_progress, 'run', p_run)));
    end if;
end
$$;
comment on function execution.note_counted_progress(uuid, uuid, uuid, numeric, jsonb) is
    'Records the progress of a phase and writes an event if it changed: at most two events per second and campaign. The '
    'event carries the counts of the phase''s run, if p_run has them. A value that comes too early waits in '
    'progress_reported for the next event. The caller has locked the campaign.';
revoke all on function execution.note_counted_progress(uuid, uuid, uuid, numeric, jsonb) from public;

create or replace function execution.note_progress_of(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform execution.note_counted_progress(p_tenant_id, p_campaign_id, p_phase_id, p_progress, null);
end
$$;
comment on function execution.note_progress_of(uuid, uuid, uuid, numeric) is
    'Records the progress of a phase as note_counted_progress does, without the counts of a run. The caller has locked '
    'the campaign.';
revoke all on function execution.note_progress_of(uuid, uuid, uuid, numeric) from public;

create or replace function execution.report_progress(
    p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text)
returns table (outcome text, status text, kind text, reason text, sequence bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_campaign record;
    v_phase record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'p_actor must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    if p_progress is null or p_progress not between 0 and 100 then
        raise exception 'progress is a percentage between 0 and 100' using errcode = 'invalid_parameter_value';
    end if;
    select campaign.sequence
      into v_campaign
      from execution.campaigns as campaign
     where campaign.tenant_id = p_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.id, phase.kind, phase.status
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
       for no key update;
    if not found then
        raise exception 'the campaign has no phase `%`', p_phase using errcode = 'no_data_found';
    end if;
    if v_phase.kind = 'delivery' or v_phase.status not in ('in_progress', 'paused') then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            case
                                when v_phase.kind = 'delivery' then 'the progress of a delivery is counted, not reported'
                                else 'a phase that is ' || v_phase.status || ' makes no progress'
                            end,
                            v_campaign.sequence;
        return;
    end if;
    perform execution.note_progress_of(p_tenant_id, p_campaign_id, v_phase.id, p_progress);
    return query
        select 'changed', v_phase.status, v_phase.kind, null::text, campaign.sequence
          from execution.campaigns as campaign
         where campaign.tenant_id = p_tenant_id
           and campaign.id = p_campaign_id;
end
$$;
comment on function execution.report_progress(uuid, uuid, text, numeric, text) is
    'Records the progress that another service reports for an external phase of the tenant. outcome is changed or '
    'conflict, with the reason.';
revoke all on function execution.report_progress(uuid, uuid, text, numeric, text) from public;
grant execute on function execution.report_progress(uuid, uuid, text, numeric, text) to postrider_app;

create or replace function execution.tenants_with_due_progress(p_worker_id text)
returns table (tenant_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant timestamptz := clock_timestamp() - interval '500 milliseconds';
begin
    return query
        select distinct due.tenant_id
          from (select run.tenant_id, run.campaign_id
                  from execution.job_queue as job
                       join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                 where job.status = 'locked'
                   and job.locked_by = p_worker_id
                   and run.status = 'running'
                union all
                select phase.tenant_id, phase.campaign_id
                  from execution.campaign_phases as phase
                 where phase.progress_reported is not null) as due
               join execution.campaigns as campaign
                 on campaign.tenant_id = due.tenant_id and campaign.id = due.campaign_id
         where campaign.progress_at is null or campaign.progress_at <= v_before;
end
$$;
comment on function execution.tenants_with_due_progress(text) is
    'Returns the tenants with a campaign whose progress may be written now: a run on which the worker works, or a report '
    'that waits for its event. Locks nothing; note_progress then writes per tenant.';
revoke all on function execution.tenants_with_due_progress(text) from public;
grant execute on function execution.tenants_with_due_progress(text) to postrider_worker;

create or replace function execution.note_progress(p_tenant_id uuid, p_worker_id text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A campaign whose newest progress event is younger gets no further one yet.
    v_before constant timestamptz := clock_timestamp() - interval '500 milliseconds';
    v_due record;
    v_campaign_ids uuid[] := '{}'::uuid[];
    v_phase_ids uuid[] := '{}'::uuid[];
    v_run_ids uuid[] := '{}'::uuid[];
    v_progress numeric[] := '{}'::numeric[];
    v_counts jsonb[] := '{}'::jsonb[];
    v_done numeric;
    v_run jsonb;
begin
    perform tenancy.require_tenant(p_tenant_id);
    for v_due in
        select distinct on (due.campaign_id) due.*
          from (select run.campaign_id, run.phase_id, run.id as run_id, null::numeric as reported
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.id in (select job.run_id
                                    from execution.job_queue as job
                                   where job.tenant_id = p_tenant_id
                                     and job.status = 'locked'
                                     and job.locked_by = p_worker_id)
                   and run.status = 'running'
                union all
                select phase.campaign_id, phase.id, null, phase.progress_reported
                  from execution.campaign_phases as phase
                 where phase.tenant_id = p_tenant_id
                   and phase.progress_reported is not null) as due
               join execution.campaigns as campaign
                 on campaign.tenant_id = p_tenant_id and campaign.id = due.campaign_id
         where campaign.progress_at is null or campaign.progress_at <= v_before
         order by due.campaign_id, random()
    loop
        v_done := v_due.reported;
        v_run := execution.run_counts(
            p_tenant_id,
            coalesce(v_due.run_id,
                     -- A report waits for its event: that of an external phase, which has no run, or the end of a delivery.
                     (select run.id
                        from execution.campaign_runs as run
                       where run.tenant_id = p_tenant_id
                         and run.phase_id = v_due.phase_id
                       order by run.number desc
                       limit 1)));
        if v_due.run_id is not null then
            -- The end of the phase reports the last tenth of a percent.
            v_done := least(99.9,
                            100.0 * ((v_run ->> 'succeeded')::bigint + (v_run ->> 'failed')::bigint + (v_run ->> 'skipped')::bigint)
                            / (v_run ->> 'intended')::bigint);
        end if;
        v_campaign_ids := v_campaign_ids || v_due.campaign_id;
        v_phase_ids := v_phase_ids || v_due.phase_id;
        v_run_ids := v_run_ids || v_due.run_id;
        v_progress := v_progress || v_done;
        v_counts := array_append(v_counts, v_run);
    end loop;
    for n in 1..cardinality(v_campaign_ids) loop
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = p_tenant_id
            and campaign.id = v_campaign_ids[n]
            and (campaign.progress_at is null or campaign.progress_at <= v_before)
            for no key update skip locked;
        continue when not found;
        -- Report only if it still holds: the run may have ended since, or another report may have come.
        perform execution.note_counted_progress(p_tenant_id, v_campaign_ids[n], v_phase_ids[n],
                                                coalesce(phase.progress_reported, v_progress[n]), v_counts[n])
           from execution.campaign_phases as phase
          where phase.tenant_id = p_tenant_id
            and phase.id = v_phase_ids[n]
            and case
                    when v_run_ids[n] is null then phase.progress_reported is not null
                    else exists (select
                                   from execution.campaign_runs as run
                                  where run.tenant_id = p_tenant_id
                                    and run.id = v_run_ids[n]
                                    and run.status = 'running')
                end;
    end loop;
end
$$;
comment on function execution.note_progress(uuid, text) is
    'Writes progress events of a tenant for the runs on which a worker works, and for reports that wait for their event. It '
    'counts before it locks, so no transaction waits for the counting, and it skips a campaign that another '
    'transaction has locked.';
revoke all on function execution.note_progress(uuid, text) from public;
grant execute on function execution.note_progress(uuid, text) to postrider_worker;
