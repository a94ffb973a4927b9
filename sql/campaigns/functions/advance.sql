-- The end of phases and the automatic start of the next phase.

create or replace function execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_runs constant uuid[] := execution.runs_since_all(p_tenant_id, p_phase_id);
    v_phase record;
    v_run record;
    v_items record;
    v_all integer;
begin
    select phase.campaign_id, phase.failure_tolerance
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    select run.id, run.status
      into strict v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[1];
    select run.intended
      into strict v_all
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[cardinality(v_runs)];
    -- The counters of the send jobs are enough for a single run without items in doubt. After a retry, or if a send job left
    -- items in doubt that may be settled by now, count the items.
    select coalesce(sum(job.succeeded + job.skipped), 0) as went_well,
           coalesce(sum(job.failed), 0) as failed
      into v_items
      from (select ended.succeeded, ended.skipped, ended.failed
              from execution.job_queue as ended
             where ended.tenant_id = p_tenant_id
               and ended.run_id = v_run.id
             order by ended.position) as job; -- in the order of an index, as in finish_run
    if cardinality(v_runs) > 1 or v_items.went_well + v_items.failed < v_all then
        select count(*) filter (where lead.went_well) as went_well,
               count(*) filter (where not lead.went_well and not lead.is_open) as failed
          into v_items
          from (select bool_or(item.status in ('sent', 'called', 'posted', 'skipped')) as went_well,
                       bool_or(item.status = 'queued') as is_open
                  from execution.channel_outbox as item
                 where item.tenant_id = p_tenant_id
                   and item.run_id = any (v_runs)
                 group by item.recipient_id) as lead;
    end if;
    perform execution.note_counted_progress(p_tenant_id, v_phase.campaign_id, p_phase_id,
                                            100.0 * (v_items.went_well + v_items.failed) / v_all,
                                            execution.run_counts(p_tenant_id, v_run.id));
    perform execution.enter_phase_state(
        p_tenant_id, v_phase.campaign_id, p_phase_id,
        case
            when v_items.went_well > 0 and v_all - v_items.went_well <= v_phase.failure_tolerance * v_all then 'complete'
            else 'fail'
        end,
        v_run.id, p_actor,
        jsonb_build_object('runStatus', v_run.status, 'items', v_all, 'succeededOrSkipped', v_items.went_well,
                           'failed', v_items.failed, 'open', v_all - v_items.went_well - v_items.failed));
end
$$;
comment on function execution.end_phase(uuid, uuid, text) is
    'Ends a phase whose newest run has ended: completed if at most the tolerated share of the audience did not get '
    'the message in the runs since the whole audience was addressed, else failed. An item that was not tried or is in '
    'doubt counts as failed. The caller has locked the campaign and the phase.';
revoke all on function execution.end_phase(uuid, uuid, text) from public;

create or replace function execution.tenants_with_due_phases(p_limit integer)
returns table (tenant_id uuid)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    -- A random order, so that a tenant whose phase always fails does not block the others.
    select due.tenant_id
      from (select distinct phase.tenant_id
              from execution.campaign_phases as phase
             where phase.due is not null) as due
     order by random()
     limit p_limit
$$;
comment on function execution.tenants_with_due_phases(integer) is
    'Chooses up to p_limit tenants that have a phase with something due, in random order. Locks nothing; tend_phase then '
    'processes one phase of a tenant.';
revoke all on function execution.tenants_with_due_phases(integer) from public;
grant execute on function execution.tenants_with_due_phases(integer) to postrider_worker;

create or replace function execution.tend_phase(p_tenant_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_phase record;
    v_next record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Choose a random one, so that a phase that always fails does not block the others.
    select phase.campaign_id, phase.id
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.due is not null
     order by random()
     limit 1;
    if not found then
        return false;
    end if;
    perform
       from execution.campaigns as campaign
      where campaign.tenant_id = p_tenant_id
        and campaign.id = v_phase.campaign_id
        for no key update skip locked;
    if not found then
        return false;
    end if;
    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = v_phase.id
       for no key update;
    if v_phase.due is null then
        return true;
    end if;
    update execution.campaign_phases set due = null where tenant_id = p_tenant_id and id = v_phase.id;
    if v_phase.due = 'end' then
        if v_phase.status = 'in_progress' then
            perform execution.end_phase(p_tenant_id, v_phase.id, p_actor);
        end if;
        return true;
    end if;
    select phase.id, phase.phase, phase.status
      into v_next
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = v_phase.campaign_id
       and phase.position > v_phase.position
     order by phase.position
     limit 1
       for no key update;
    if not found or v_next.status <> 'not_started' then
        return true;
    end if;
    begin
        perform execution.start_phase(p_tenant_id, v_phase.campaign_id, v_next.id, gen_random_uuid(), 500, p_actor);
    exception
        -- Record an error of the phase. A database error is raised, and the caller retries.
        when invalid_parameter_value or no_data_found or check_violation then
            update execution.campaigns
               set not_advanced = left(v_next.phase || ': ' || sqlerrm, 2000)
             where tenant_id = p_tenant_id
               and id = v_phase.campaign_id;
            perform execution.audit(p_tenant_id, v_phase.campaign_id, v_next.id, null, null, null, p_actor,
                                    'phase.not_advanced', sqlerrm);
    end;
    return true;
end
$$;
comment on function execution.tend_phase(uuid, text) is
    'Processes one phase of a tenant that has something due: ends it, or starts the next phase of a campaign with auto_advance. '
    'Returns false if nothing is due or another transaction has locked the campaign. If the next phase cannot be '
    'started, the campaign records the reason in not_advanced.';
revoke all on function execution.tend_phase(uuid, text) from public;
grant execute on function execution.tend_phase(uuid, text) to postrider_worker;
