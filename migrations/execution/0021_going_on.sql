-- Phases say how far they are, campaigns go on by themselves where they should, and old events are removed.
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

-- Says how far the runs are that a worker works on, and what was left unsaid.
-- A campaign that somebody else is busy with is left to its next turn.
create function execution.note_progress(p_worker_id text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_progress record;
begin
    for v_phase in
        select distinct on (due.tenant_id, due.campaign_id) due.*
          from (select run.tenant_id, run.campaign_id, run.phase_id, run.id as run_id
                  from execution.campaign_runs as run
                 where run.id in (select job.run_id
                                    from execution.job_queue as job
                                   where job.status = 'locked'
                                     and job.locked_by = p_worker_id)
                   and run.status = 'running'
                union all
                select phase.tenant_id, phase.campaign_id, phase.id, null
                  from execution.campaign_phases as phase
                 where phase.progress_reported is not null) as due
         order by due.tenant_id, due.campaign_id, random()
    loop
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = v_phase.tenant_id
            and campaign.id = v_phase.campaign_id
            and (campaign.progress_at is null or campaign.progress_at <= clock_timestamp() - interval '500 milliseconds')
            for no key update skip locked;
        continue when not found;
        if v_phase.run_id is null then
            perform execution.note_progress_of(v_phase.tenant_id, v_phase.campaign_id, v_phase.phase_id, phase.progress_reported)
               from execution.campaign_phases as phase
              where phase.tenant_id = v_phase.tenant_id
                and phase.id = v_phase.phase_id
                and phase.progress_reported is not null;
        else
            perform set_config('app.current_tenant_id', v_phase.tenant_id::text, true);
            select progress.*
              into v_progress
              from execution.run_progress(array[v_phase.run_id]) as progress;
            -- The last tenth is for the end of the run, which says it with the phase's.
            perform execution.note_progress_of(
                v_phase.tenant_id, v_phase.campaign_id, v_phase.phase_id,
                least(99.9, 100.0 * (v_progress.succeeded + v_progress.failed + v_progress.skipped) / v_progress.intended))
               from execution.campaign_runs as run
              where run.id = v_phase.run_id
                and run.status = 'running';
            perform set_config('app.current_tenant_id', '', true);
        end if;
    end loop;
end
$$;

-- Starts the successor of one phase that has completed, in a campaign that goes on by itself. Answers whether there was one to
-- look after. A successor that cannot be started stays where it is, and the campaign says why.
create function execution.advance_campaign(p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_campaign record;
    v_next record;
begin
    select campaign.tenant_id, campaign.id, campaign.advance_from
      into v_campaign
      from execution.campaigns as campaign
     where campaign.advance_from is not null
     order by campaign.tenant_id, campaign.id
     limit 1
       for no key update skip locked;
    if not found then
        return false;
    end if;
    update execution.campaigns
       set advance_from = null
     where tenant_id = v_campaign.tenant_id
       and id = v_campaign.id;
    select phase.id, phase.phase, phase.status
      into v_next
      from execution.campaign_phases as phase
     where phase.tenant_id = v_campaign.tenant_id
       and phase.campaign_id = v_campaign.id
       and phase.position > v_campaign.advance_from
     order by phase.position
     limit 1
       for no key update;
    if not found or v_next.status <> 'not_started' then
        return true;
    end if;
    begin
        perform execution.start_phase(v_campaign.tenant_id, v_campaign.id, v_next.id, gen_random_uuid(), 500, p_actor);
    exception
        -- What is wrong with the phase is said; what is wrong with the database is tried again.
        when invalid_parameter_value or no_data_found or check_violation then
            update execution.campaigns
               set not_advanced = left(v_next.phase || ': ' || sqlerrm, 2000)
             where tenant_id = v_campaign.tenant_id
               and id = v_campaign.id;
            perform execution.audit(v_campaign.tenant_id, v_campaign.id, v_next.id, null, null, null, p_actor,
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
    execution.advance_campaign(text),
    execution.prune_campaign_events(timestamptz, integer)
    to postrider_worker;
