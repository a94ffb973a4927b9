-- Phases say how far they are, end and follow each other by themselves, and old events are removed.
-- Safe beside running workers: it adds functions and touches no table.

-- What another service reports of a phase that it does.
create function execution.report_progress(p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text)
returns table (outcome text, status text, kind text, reason text, sequence bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_campaign record;
    v_phase record;
begin
    -- Who stands still in the middle of this holds up others; the server ends such a transaction.
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '30s', true);
    end if;
    if p_progress is null or p_progress not between 0 and 100 then
        raise exception 'progress is a percentage between 0 and 100' using errcode = 'invalid_parameter_value';
    end if;
    select campaign.sequence
      into v_campaign
      from execution.campaigns as campaign
     where campaign.tenant_id = v_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.id, phase.kind, phase.status
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_tenant_id
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
    perform execution.note_progress_of(v_tenant_id, p_campaign_id, v_phase.id, p_progress);
    return query
        select 'changed', v_phase.status, v_phase.kind, null::text, campaign.sequence
          from execution.campaigns as campaign
         where campaign.tenant_id = v_tenant_id
           and campaign.id = p_campaign_id;
end
$$;

-- Says how far the runs are that a worker works on, and what was left unsaid. It counts first and locks then: nobody waits for
-- the counting. A campaign that somebody else is busy with is left to its next turn.
create function execution.note_progress(p_worker_id text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_due record;
    v_tenant_ids uuid[] := '{}';
    v_campaign_ids uuid[] := '{}';
    v_phase_ids uuid[] := '{}';
    v_run_ids uuid[] := '{}';
    v_progress numeric[] := '{}';
    v_done numeric;
begin
    for v_due in
        select distinct on (due.tenant_id, due.campaign_id) due.*
          from (select run.tenant_id, run.campaign_id, run.phase_id, run.id as run_id, null::numeric as reported
                  from execution.campaign_runs as run
                 where run.id in (select job.run_id
                                    from execution.job_queue as job
                                   where job.status = 'locked'
                                     and job.locked_by = p_worker_id)
                   and run.status = 'running'
                union all
                select phase.tenant_id, phase.campaign_id, phase.id, null, phase.progress_reported
                  from execution.campaign_phases as phase
                 where phase.progress_reported is not null) as due
               join execution.campaigns as campaign
                 on campaign.tenant_id = due.tenant_id and campaign.id = due.campaign_id
         where campaign.progress_at is null or campaign.progress_at <= clock_timestamp() - interval '500 milliseconds'
         order by due.tenant_id, due.campaign_id, random()
    loop
        v_done := v_due.reported;
        if v_due.run_id is not null then
            perform set_config('app.current_tenant_id', v_due.tenant_id::text, true);
            -- The last tenth is for the end of the run, which says it with the phase's.
            select least(99.9, 100.0 * (progress.succeeded + progress.failed + progress.skipped) / progress.intended)
              into v_done
              from execution.run_progress(array[v_due.run_id]) as progress;
            perform set_config('app.current_tenant_id', '', true);
        end if;
        v_tenant_ids := v_tenant_ids || v_due.tenant_id;
        v_campaign_ids := v_campaign_ids || v_due.campaign_id;
        v_phase_ids := v_phase_ids || v_due.phase_id;
        v_run_ids := v_run_ids || v_due.run_id;
        v_progress := v_progress || v_done;
    end loop;
    for n in 1..cardinality(v_tenant_ids) loop
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = v_tenant_ids[n]
            and campaign.id = v_campaign_ids[n]
            and (campaign.progress_at is null or campaign.progress_at <= clock_timestamp() - interval '500 milliseconds')
            for no key update skip locked;
        continue when not found;
        -- Only what is still so: the run may have ended meanwhile, or another report may have come.
        perform execution.note_progress_of(v_tenant_ids[n], v_campaign_ids[n], v_phase_ids[n],
                                           coalesce(phase.progress_reported, v_progress[n]))
           from execution.campaign_phases as phase
          where phase.tenant_id = v_tenant_ids[n]
            and phase.id = v_phase_ids[n]
            and case
                    when v_run_ids[n] is null then phase.progress_reported is not null
                    else exists (select
                                   from execution.campaign_runs as run
                                  where run.id = v_run_ids[n]
                                    and run.status = 'running')
                end;
    end loop;
end
$$;

-- Does what one phase is due for: ends it, or starts its successor in a campaign that goes on by itself. Answers whether there was
-- something to do. A successor that cannot be started stays where it is, and the campaign says why.
create function execution.tend_phase(p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_next record;
begin
    -- Any of them, so that one that always fails does not stand in the way of the others.
    select phase.tenant_id, phase.campaign_id, phase.id
      into v_phase
      from execution.campaign_phases as phase
     where phase.due is not null
     order by random()
     limit 1;
    if not found then
        return false;
    end if;
    perform
       from execution.campaigns as campaign
      where campaign.tenant_id = v_phase.tenant_id
        and campaign.id = v_phase.campaign_id
        for no key update skip locked;
    if not found then
        return false;
    end if;
    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = v_phase.tenant_id
       and phase.id = v_phase.id
       for no key update;
    if v_phase.due is null then
        return true;
    end if;
    update execution.campaign_phases set due = null where tenant_id = v_phase.tenant_id and id = v_phase.id;
    if v_phase.due = 'end' then
        if v_phase.status = 'in_progress' then
            perform execution.end_phase(v_phase.tenant_id, v_phase.id, p_actor);
        end if;
        return true;
    end if;
    select phase.id, phase.phase, phase.status
      into v_next
      from execution.campaign_phases as phase
     where phase.tenant_id = v_phase.tenant_id
       and phase.campaign_id = v_phase.campaign_id
       and phase.position > v_phase.position
     order by phase.position
     limit 1
       for no key update;
    if not found or v_next.status <> 'not_started' then
        return true;
    end if;
    begin
        perform execution.start_phase(v_phase.tenant_id, v_phase.campaign_id, v_next.id, gen_random_uuid(), 500, p_actor);
    exception
        -- What is wrong with the phase is said; what is wrong with the database is tried again.
        when invalid_parameter_value or no_data_found or check_violation then
            update execution.campaigns
               set not_advanced = left(v_next.phase || ': ' || sqlerrm, 2000)
             where tenant_id = v_phase.tenant_id
               and id = v_phase.campaign_id;
            perform execution.audit(v_phase.tenant_id, v_phase.campaign_id, v_next.id, null, null, null, p_actor,
                                    'phase.not_advanced', sqlerrm);
    end;
    return true;
end
$$;

-- Removes old events, so many at a time. Who asks for one of them is told to take a snapshot.
create function execution.prune_campaign_events(p_before timestamptz, p_limit integer default 1000)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_removed bigint := 0;
    v_part bigint;
    v_campaign record;
begin
    -- A campaign's events go in their order, with its row locked: a reader never meets a gap in the middle.
    for v_campaign in
        select old.tenant_id, old.campaign_id, max(old.sequence) as through
          from (select event.tenant_id, event.campaign_id, event.sequence
                  from execution.campaign_events as event
                 where event.at < least(p_before, now() - interval '1 hour')
                 order by event.at, event.tenant_id, event.campaign_id, event.sequence
                 limit p_limit) as old
         group by old.tenant_id, old.campaign_id
         order by old.tenant_id, old.campaign_id
    loop
        -- Whoever is busy with it is not waited for; the rest comes with the next round.
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = v_campaign.tenant_id
            and campaign.id = v_campaign.campaign_id
            for no key update skip locked;
        continue when not found;
        update execution.campaigns as campaign
           set pruned_through = greatest(campaign.pruned_through, v_campaign.through)
         where campaign.tenant_id = v_campaign.tenant_id
           and campaign.id = v_campaign.campaign_id;
        delete from execution.campaign_events as event
         where event.tenant_id = v_campaign.tenant_id
           and event.campaign_id = v_campaign.campaign_id
           and event.sequence <= v_campaign.through;
        get diagnostics v_part = row_count;
        v_removed := v_removed + v_part;
    end loop;
    return v_removed;
end
$$;

revoke all on all functions in schema execution from public;
grant execute on function
    execution.report_progress(uuid, text, numeric, text)
    to postrider_app;
grant execute on function
    execution.note_progress(text),
    execution.tend_phase(text),
    execution.prune_campaign_events(timestamptz, integer)
    to postrider_worker;
